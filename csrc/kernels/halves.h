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

}  // namespace weft::ISA
