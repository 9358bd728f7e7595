// state_write: keys and values into their pages. How a row is rounded: weft/ops/state.py.
#pragma once
#include "kernels/matmul_ints.h"
#include "kernels/round_bf16.h"
#include "kernels/rows.h"
#include "kernels/segments.h"
#include "kernels/state_elements.h"

namespace weft::ISA {

WEFT_INLINE void narrow(float* to, f32x16 x) { store(to, x); }
WEFT_INLINE void narrow(Half* to, f32x16 x) { store_f16(&to->bits, x); }
WEFT_INLINE void narrow(Bf16* to, f32x16 x) { store_rounded(&to->bits, x); }

// A row as the state holds it, in whole vectors; returns its scale.
template <class T>
WEFT_INLINE float narrow_row(T* to, const float* x, int64_t dim) {
  for (int64_t c = 0; c < dim; c += 16) narrow(to + c, load_n(x + c, dim - c));
  return 1;
}
WEFT_INLINE float narrow_row(int8_t* to, const float* x, int64_t dim) {
  const float top = max_lane(fold(dim, zero(), [=](auto at, f32x16 acc) { return max(abs(at(x)), acc); }));
  const float none = sum(fold(dim, zero(), [=](auto at, f32x16 acc) { return acc + (at(x) - at(x)); }));
  // Rounded up to bfloat16: a weight of one times it is exact there, as it is without a scale.
  const float scale = bit_cast<float>((bit_cast<uint32_t>(top / 127.0f) + 0xFFFFu) & 0xFFFF0000u), steps = 1.0f / scale;
  const bool finite = none == 0, usable = finite && steps - steps == 0;  // neither zeros nor so small that this overflows
  const f32x16 by = splat(usable ? steps : 0.0f);
  for (int64_t c = 0; c < dim; c += 16) {
    const f32x16 codes = usable ? round(load_n(x + c, dim - c) * by) : zero();
    store_i8(to + c, min(max(codes, splat(-127.0f)), splat(127.0f)));
  }
  return usable ? scale : finite ? 0.0f : __builtin_nanf("");
}

// Neighbouring tokens of a sequence that lie in one page, from `token` and from `slot` on.
struct Run {
  int64_t token, count, page, head, slot;
};

// Keys wait in scratch until a run is complete; then the transposed page is written line by line, not token by token.
template <class T>
struct RunWriter {
  const KvState& state;
  T* rows;
  float scales[kPage];

  WEFT_INLINE RunWriter(const KvState& state, std::byte* scratch) : state(state), rows(reinterpret_cast<T*>(scratch)) {}
  WEFT_INLINE int64_t width() const { return (state.dim + 15) / 16 * 16; }
  // How many rows there is room for in half of a worker's scratch.
  WEFT_INLINE int64_t room() const {
    return larger(1, smaller(kPage, static_cast<int64_t>(kScratchBytes / 2 / sizeof(T)) / width()));
  }

  WEFT_INLINE void add_key(int64_t i, const float* k) { scales[i] = narrow_row(rows + i * width(), k, state.dim); }
  WEFT_INLINE void write_keys(const Run& run) const {
    const auto key = block_of<T>(state, state.key, run.page, run.head);
    for (int64_t c = 0; c < state.dim; ++c)
      for (int64_t i = 0; i < run.count; ++i) key.elements[c * kPage + run.slot + i] = rows[i * width() + c];
    if constexpr (kScaled<T>)
      for (int64_t i = 0; i < run.count; ++i) key.scales[run.slot + i] = scales[i];
  }
  WEFT_INLINE void write_value(const Run& run, int64_t i, const float* v) const {
    const auto value = block_of<T>(state, state.value, run.page, run.head);
    T* to = value.elements + (run.slot + i) * state.dim;
    const bool whole = width() == state.dim;  // else the last vector would overwrite another token
    const float scale = narrow_row(whole ? to : rows, v, state.dim);
    for (int64_t c = 0; !whole && c < state.dim; ++c) to[c] = rows[c];
    if constexpr (kScaled<T>) value.scales[run.slot + i] = scale;
  }
};

// Calls f(run) until all tokens and heads are covered. `where` is positions i32 [T], segments i32 [B+1], pages i32 [B, P]:
// token t of sequence b goes to slot position % kPage of page pages[b][position / kPage]. A task is one head of
// at most kPage tokens; a run has at most `room` of them.
template <class F>
WEFT_INLINE void deal_runs(const Worker& worker, const Operand* where, int64_t heads, int64_t room, F f) {
  const int32_t *positions = where[0].as<int32_t>(), *segments = where[1].as<int32_t>(), *pages = where[2].as<int32_t>();
  const int64_t tokens = where[0].cols(), batch = where[2].rows(), pages_per_sequence = where[2].cols();
  // Where each sequence has one token, no two share a page, and a task may have as few as suit the team.
  bool single = tokens == batch;
  for (int64_t b = 0; single && b < batch; ++b) single = segments[b] == b;
  const int64_t most = single ? larger(1, smaller(kPage, tokens * heads / worker.count)) : kPage;
  const int64_t chunks = (tokens + most - 1) / most;
  for (int64_t task; (task = worker.next(chunks * heads)) < chunks * heads;) {
    const int64_t head = task % heads, end = smaller((task / heads + 1) * most, tokens);
    int64_t b = segment_of(segments, batch, task / heads * most);
    for (int64_t token = task / heads * most, count; token < end; token += count) {
      while (token >= segments[b + 1]) ++b;
      const int64_t position = positions[token], last = smaller(end, segments[b + 1]);
      count = 1;
      while (count < room && token + count < last && positions[token + count] == position + count &&
             position % kPage + count < kPage)
        ++count;
      f(Run{token, count, pages[b * pages_per_sequence + position / kPage], head, position % kPage});
    }
  }
}

}  // namespace weft::ISA
