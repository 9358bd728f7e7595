// hadamard_row: one row turned by (F kron H / sqrt(size) kron I), for the op, and for kernels that turn rows themselves.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

// A row of parts * size * stride columns; those that H mixes are `stride` apart.
struct HadamardShape {
  int64_t parts, size, stride;
  WEFT_INLINE int64_t part() const { return size * stride; }
  WEFT_INLINE int64_t columns() const { return parts * size * stride; }
};

// 16 neighbours times `by` and the matrix of 16. Each of the four steps puts sums of neighbours into the first half and
// their differences into the second, so that the fourth ends in the order of the first.
WEFT_INLINE f32x16 sixteen(const float* x, f32x16 by) {
#if defined(WEFT_ISA_neon)
  f32x16 a = load(x) * by;
#pragma GCC unroll 4
  for (int step = 0; step < 4; ++step) {
    const float32x4_t even0 = vuzp1q_f32(a.v[0], a.v[1]), odd0 = vuzp2q_f32(a.v[0], a.v[1]);
    const float32x4_t even1 = vuzp1q_f32(a.v[2], a.v[3]), odd1 = vuzp2q_f32(a.v[2], a.v[3]);
    a = {{vaddq_f32(even0, odd0), vaddq_f32(even1, odd1), vsubq_f32(even0, odd0), vsubq_f32(even1, odd1)}};
  }
  return a;
#else
  alignas(64) float a[16], b[16];
  store(a, load(x) * by);
  const auto step = [](float* to, const float* from) {
    for (int i = 0; i < 8; ++i) to[i] = from[2 * i] + from[2 * i + 1], to[i + 8] = from[2 * i] - from[2 * i + 1];
  };
  step(b, a), step(a, b), step(b, a), step(a, b);
  return load(a);
#endif
}

// low, high = low + high, low - high, `count` elements of each.
WEFT_INLINE void butterflies(float* low, float* high, int64_t count) {
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const f32x16 a = load(low + i), b = load(high + i);
    store(low + i, a + b), store(high + i, a - b);
  }
  if (i < count) {
    const f32x16 a = load_n(low + i, count - i), b = load_n(high + i, count - i);
    store_n(low + i, a + b, count - i), store_n(high + i, a - b, count - i);
  }
}

// H / sqrt(size) of every part; `to` may be `from`.
WEFT_INLINE void walsh_row(float* to, const float* from, const HadamardShape& shape) {
  const f32x16 by = splat(1.0f / __builtin_sqrtf(static_cast<float>(shape.size)));
  const int64_t columns = shape.columns();
  int64_t half = 1;
  if (shape.stride == 1 && shape.size >= 16) {
    for (int64_t i = 0; i < columns; i += 16) store(to + i, sixteen(from + i, by));
    half = 16;
  } else {
    fill(to, columns, [&](auto at) { return at(from) * by; });
  }
  for (; half < shape.size; half *= 2) {
    const int64_t span = half * shape.stride;
    for (int64_t first = 0; first < columns; first += 2 * span) butterflies(to + first, to + first + span, span);
  }
}

// The whole. `factor` [parts * parts] is F row by row, transposed with `inverse`, null for one part; `scratch` has room for a
// row, and `to` may be `from`.
WEFT_INLINE void hadamard_row(float* to, const float* from, const float* factor, bool inverse, const HadamardShape& shape,
                              float* scratch) {
  walsh_row(factor ? scratch : to, from, shape);
  if (!factor) return;
  const int64_t parts = shape.parts, part = shape.part(), down = inverse ? 1 : parts, along = inverse ? parts : 1;
  for (int64_t p = 0; p < parts; ++p) {
    const float* row = factor + p * down;
    fill(to + p * part, part, [&](auto at) {
      f32x16 acc = splat(row[0]) * at(scratch);
      for (int64_t q = 1; q < parts; ++q) acc = fma(splat(row[q * along]), at(scratch + q * part), acc);
      return acc;
    });
  }
}

}  // namespace weft::ISA
