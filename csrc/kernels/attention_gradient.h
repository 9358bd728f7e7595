// attention_gradient: what the two halves of attention's gradient share.
#pragma once
#include "kernels/attention_bias.h"
#include "kernels/philox.h"
#include "kernels/strips.h"
#include "simd/transpose.h"

namespace weft::ISA {

constexpr int64_t kMostRows = 30;  // of a task
constexpr int64_t kTurned = 64;  // rows that are turned around at a time

// out [rows, count] = left [rows, dim] · right [count, dim], element by element one chain over dim
WEFT_INLINE void all_dots(float* out, int64_t out_row, int64_t rows, Left left, const float* right, int64_t stride,
                          int64_t count, int64_t dim, float* turned) {
  for (int64_t i = 0; i < rows; ++i) clear(out + i * out_row, count);
  for (int64_t j = 0; j < count; j += kTurned) {
    const int64_t here = smaller(kTurned, count - j);
    turn(turned, kTurned, right + j * stride, stride, here, dim);
    add_product(out + j, out_row, rows, here, left, turned, kTurned, dim);
  }
}

// Which tokens a token sees, or is seen by, within a sequence of `length`: [low, high).
struct Seen {
  bool causal;
  int64_t window, length;
  WEFT_INLINE int64_t key_low(int64_t query) const { return window ? larger(0, query - window + 1) : 0; }
  WEFT_INLINE int64_t key_high(int64_t query) const {
    return causal ? query + 1 : window ? smaller(length, query + window) : length;
  }
  WEFT_INLINE int64_t query_low(int64_t key) const { return causal ? key : window ? larger(0, key - window + 1) : 0; }
  WEFT_INLINE int64_t query_high(int64_t key) const { return window ? smaller(length, key + window) : length; }
};

// Scores from products of queries and keys, and what a product changes its score by.
struct Scores {
  f32x16 scale, cap;
  bool capped;
  Scores(double by, double limit) : scale(splat(static_cast<float>(by))), cap(splat(static_cast<float>(limit))), capped(limit > 0) {}
  WEFT_INLINE f32x16 score(f32x16 product) const {
    return capped ? cap * tanh(product * scale / cap) : product * scale;
  }
  WEFT_INLINE f32x16 slope(f32x16 score) const {
    const f32x16 part = score / cap;
    return capped ? scale * (splat(1.0f) - part * part) : scale;
  }
};

// The biases of one head by distance, and the same by distance the other way: what a query's row, or a key's row, adds.
struct Distances {
  Lines lines;
  float* turned = nullptr;
  Distances(const Operand* bias, const Operand* buckets) : lines(lines_of(bias, buckets, 1)) {}
  WEFT_INLINE bool any() const { return lines.bias != nullptr; }
  WEFT_INLINE int64_t size() const { return 2 * lines.line; }  // floats of scratch
  WEFT_INLINE void fill(float* scratch, int64_t head) {
    lines.first = scratch, turned = scratch + lines.line;
    fill_lines(lines, head, 1);
    for (int64_t i = 0; i < lines.line; ++i) turned[i] = scratch[lines.line - 1 - i];
  }
  // Of 16 keys from `key` on, for one query.
  WEFT_INLINE f32x16 of_keys(int64_t query, int64_t key) const {
    return load_n(lines.first + lines.reach + 16 + larger(-lines.reach - 16, smaller(lines.reach, key - query)), 16);
  }
  // Of 16 queries from `query` on, for one key.
  WEFT_INLINE f32x16 of_queries(int64_t key, int64_t query) const {
    return load_n(turned + lines.reach + 15 + larger(-lines.reach - 15, smaller(lines.reach + 1, query - key)), 16);
  }
};

// Weights that are left out: what those of a query are multiplied by.
struct Drops {
  const int32_t* draws;  // [T, 3], or null
  Dropping dropping;
  uint32_t site;
  Drops(const Operand* draws, double rate, int64_t site)
      : draws(draws ? draws->as<int32_t>() : nullptr), dropping(rate), site(static_cast<uint32_t>(site)) {}
  WEFT_INLINE bool any() const { return draws != nullptr; }
  WEFT_INLINE Draw draw(int64_t token, int64_t head) const {
    const int32_t* own = draws + 3 * token;
    return {static_cast<uint32_t>(own[0]), static_cast<uint32_t>(own[1]), static_cast<uint32_t>(own[2]), site,
            static_cast<uint32_t>(head + 1)};
  }
  // row [count] of a query's keys from the first on, times what they are kept with
  WEFT_INLINE void apply(float* row, int64_t count, int64_t token, int64_t head) const {
    alignas(64) float factors[kTurns * kTurn];
    for (int64_t first = 0; first < count; first += kTurns * kTurn) {
      const int64_t here = smaller(kTurns * kTurn, count - first);
      dropping.fill(factors, draw(token, head), first / kTurn, (here + kTurn - 1) / kTurn);
      fill(row + first, here, [&](auto at) { return at(row + first) * at(factors); });
    }
  }
  // to [rows][kTurned]: the same for `count` queries from `token` on and `rows` keys from `first` on
  WEFT_INLINE void columns(float* to, int64_t first, int64_t rows, int64_t token, int64_t count, int64_t head) const {
    const int64_t from = first / kTurn, turns = (first + rows - 1) / kTurn - from + 1, skip = first - from * kTurn;
    alignas(64) float factors[kMostRows + 2 * kTurn];
    for (int64_t i = 0; i < count; ++i) {
      dropping.fill(factors, draw(token + i, head), from, turns);
      for (int64_t r = 0; r < rows; ++r) to[r * kTurned + i] = factors[skip + r];
    }
  }
};

// How many rows a task takes so that two arrays [rows, length] fit beside `kept` elements of scratch: of the sequence's
// length alone, so that no other sequence decides.
WEFT_INLINE int64_t block_rows(int64_t length, int64_t kept) {
  const int64_t room = (static_cast<int64_t>(kScratchBytes / sizeof(float)) - kept) / 2;
  return larger(1, smaller(kMostRows, room / larger(1, length)));
}

// Calls f(sequence, head, first row, rows) for blocks of the rows of each sequence.
template <class F>
WEFT_INLINE void deal_blocks(const Worker& worker, const int32_t* segments, int64_t batch, int64_t heads, int64_t kept,
                             F f) {
  int64_t tasks = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t length = segments[b + 1] - segments[b], block = block_rows(length, kept);
    tasks += heads * ((length + block - 1) / block);
  }
  int64_t b = 0, before = 0;  // the tasks before sequence b
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    for (;; ++b) {
      const int64_t length = segments[b + 1] - segments[b], block = block_rows(length, kept);
      const int64_t blocks = (length + block - 1) / block, here = heads * blocks;
      if (task < before + here) {
        const int64_t at = task - before, first = at % blocks * block;
        f(b, at / blocks, first, smaller(block, length - first));
        break;
      }
      before += here;
    }
  }
}

}  // namespace weft::ISA
