// halves: vectors of half precision, at levels with half-precision arithmetic.
#pragma once
#include "core/half.h"
#include "simd/simd.h"

namespace weft::ISA {

using Half8 = float16x8_t;
using Half = float16_t;

// 8 elements, of which n exist, times `by`; the others are zeros.
WEFT_INLINE Half8 read_half(const float* p, int64_t n, float by) {
  float part[8] = {};
  if (n < 8) {
    for (int64_t i = 0; i < n; ++i) part[i] = p[i];
    p = part;
  }
  const float32x4_t low = vmulq_n_f32(vld1q_f32(p), by), high = vmulq_n_f32(vld1q_f32(p + 4), by);
  return vcombine_f16(vcvt_f16_f32(low), vcvt_f16_f32(high));
}

template <int at>
struct Lane {};

// Calls f(Lane<0>{}) to f(Lane<7>{}).
template <class F>
WEFT_INLINE void each_lane(F f) {
  f(Lane<0>{}), f(Lane<1>{}), f(Lane<2>{}), f(Lane<3>{}), f(Lane<4>{}), f(Lane<5>{}), f(Lane<6>{}), f(Lane<7>{});
}

// acc + b * x[at]. Written as assembly, because compilers copy x[at] first where their own intrinsic is used.
template <int at>
WEFT_INLINE Half8 fma_lane(Half8 acc, Half8 b, Half8 x) {
  asm("fmla %0.8h, %1.8h, %2.h[%3]" : "+w"(acc) : "w"(b), "x"(x), "n"(at));
  return acc;
}

// Sums of R rows and 16 outputs over `count` columns, 8 at most.
template <int R>
WEFT_INLINE void add_columns(const Half* x, int64_t x_stride, const Half* w, int64_t count, Half8 (&sums)[R][2]) {
  if (count == 8) {
    Half8 eight[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) eight[r] = vld1q_f16(x + r * x_stride);
    each_lane([&]<int at>(Lane<at>) {
      const Half8 low = vld1q_f16(w + at * 16), high = vld1q_f16(w + at * 16 + 8);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        sums[r][0] = fma_lane<at>(sums[r][0], low, eight[r]);
        sums[r][1] = fma_lane<at>(sums[r][1], high, eight[r]);
      }
    });
    return;
  }
  for (int64_t k = 0; k < count; ++k)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Half8 value = vdupq_n_f16(x[r * x_stride + k]);
      sums[r][0] = vfmaq_f16(sums[r][0], vld1q_f16(w + k * 16), value);
      sums[r][1] = vfmaq_f16(sums[r][1], vld1q_f16(w + k * 16 + 8), value);
    }
}

WEFT_INLINE f32x16 widened(const Half8 (&sums)[2]) {
  return {{vcvt_f32_f16(vget_low_f16(sums[0])), vcvt_high_f32_f16(sums[0]), vcvt_f32_f16(vget_low_f16(sums[1])),
           vcvt_high_f32_f16(sums[1])}};
}

}  // namespace weft::ISA
