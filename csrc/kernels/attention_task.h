// attention_task: how the rows of attention are divided into tasks.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

constexpr int64_t up_to(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// A worker's scratch, given out piece by piece.
struct Pieces {
  std::byte* free;
  template <class T>
  WEFT_INLINE void take(T*& to, int64_t count) {
    to = reinterpret_cast<T*>(free);
    free += count * static_cast<int64_t>(sizeof(T));
  }
};

// `count` rows from `first` on, of one sequence and key/value head. Row r is the query head r % share (of the `share`
// query heads that read this key/value head) of the sequence's token r / share.
struct SpanTask {
  int64_t sequence, head, first, count;
};

constexpr int64_t kLeastSpan = 64;

// Calls f(SpanTask) for every span of at most `most` rows, of fewer where the team would else be idle. Later spans of a
// sequence come first: with causal attention they take longest. A worker's tasks only grow, so one walk over the
// sequences serves all of them.
template <class F>
WEFT_INLINE void deal_spans(const Worker& worker, const int32_t* segments, int64_t batch, int64_t heads, int64_t share,
                            int64_t most, F f) {
  const auto count = [&] {
    int64_t total = 0;
    for (int64_t b = 0; b < batch; ++b) total += ((segments[b + 1] - segments[b]) * share + most - 1) / most * heads;
    return total;
  };
  int64_t tasks = count();
  while (worker.count > 1 && most >= 2 * kLeastSpan && tasks < 4 * worker.count) {
    most /= 2;
    tasks = count();
  }
  int64_t sequence = 0, before = 0;  // tasks of the sequences before this one
  for (;;) {
    const int64_t task = worker.next(tasks);
    int64_t rows = 0, spans = 0;
    for (;; ++sequence, before += spans * heads) {
      if (sequence == batch) return;
      rows = (segments[sequence + 1] - segments[sequence]) * share;
      spans = (rows + most - 1) / most;
      if (task < before + spans * heads) break;
    }
    const int64_t head = (task - before) % heads, first = (spans - 1 - (task - before) / heads) * most;
    f(SpanTask{sequence, head, first, smaller(most, rows - first)});
  }
}

}  // namespace weft::ISA
