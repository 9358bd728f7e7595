// rows: loops of the small kernels. A loop over a row or a flat array is written once, as a function of `at`, which loads
// the 16 elements at the current index, or the remaining ones at the end (the other lanes are zero):
//
//   fill(y, n, [&](auto at) { return at(x) * scale; });
//   f32x16 lanes = fold(n, zero(), [&](auto at, f32x16 acc) { return fma(at(x), at(x), acc); });
#pragma once
#include "simd/simd.h"

namespace weft::ISA {

constexpr int64_t kGrain = 4096;  // elements per task: a microsecond or so of work, against 50 ns for handing it out

struct Whole {
  int64_t i;
  WEFT_INLINE f32x16 operator()(const float* p) const { return load(p + i); }
  WEFT_INLINE f32x16 or_else(f32x16 a, f32x16) const { return a; }
};

struct Part {
  int64_t i, n;
  WEFT_INLINE f32x16 operator()(const float* p) const { return load_n(p + i, n); }
  // a in the lanes that are part of the row, b in the others
  WEFT_INLINE f32x16 or_else(f32x16 a, f32x16 b) const {
    alignas(64) static constexpr float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return where_less(load(lane), splat(static_cast<float>(n)), a, b);
  }
};

template <class F>
WEFT_INLINE void fill(float* to, int64_t n, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(to + i, f(Whole{i}));
  if (i < n) store_n(to + i, f(Part{i, n - i}), n - i);
}

template <class F>
WEFT_INLINE f32x16 fold(int64_t n, f32x16 acc, F f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) acc = f(Whole{i}, acc);
  if (i < n) acc = f(Part{i, n - i}, acc);
  return acc;
}

WEFT_INLINE float sum_of_squares(const float* x, int64_t n) {
  return sum(fold(n, zero(), [=](auto at, f32x16 acc) {
    f32x16 v = at(x);
    return fma(v, v, acc);
  }));
}

WEFT_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
WEFT_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Calls f(first, count) for ranges that together cover [0, total), `grain` at a time: fewer, down to an eighth, where the team
// would else be larger than the number of ranges.
template <class F>
WEFT_INLINE void deal(const Worker& worker, int64_t total, int64_t grain, F f) {
  grain = larger(1, larger(grain / 8, smaller(grain, total / worker.count)));
  const int64_t tasks = (total + grain - 1) / grain;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) f(task * grain, smaller(grain, total - task * grain));
}

// Calls f(row) for every row, dealt out in handfuls of about kGrain elements.
template <class F>
WEFT_INLINE void deal_rows(const Worker& worker, int64_t rows, int64_t dim, F f) {
  deal(worker, rows, larger(1, kGrain / larger(1, dim)), [&](int64_t first, int64_t count) {
    for (int64_t row = first; row < first + count; ++row) f(row);
  });
}

}  // namespace weft::ISA
