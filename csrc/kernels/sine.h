// sine: cosines and sines of f32 angles of any size, in plain double arithmetic, so that they are the same to the bit
// at every level and need no particular libm.
#pragma once
#include <cmath>

#include "core/kernel.h"

namespace weft::ISA {

// pi/2 in three parts; the first two have 33 bits, so that their products with a quarter count below 2^20 are exact.
constexpr double kHalfPi1 = 0x1.921fb544p+0, kHalfPi2 = 0x1.0b4611a6p-34, kHalfPi3 = 0x1.3198a2e037073p-69;
constexpr float kLargestReduced = 1e6f;  // above it, libm

// Taylor polynomials on [-pi/4, pi/4]: below 1e-11, so that the rounding to f32 is almost always the right one.
WEFT_INLINE double sine_polynomial(double r) {
  double s = r * r;
  double p = 1.0 / 6227020800;
  p = p * s - 1.0 / 39916800;
  p = p * s + 1.0 / 362880;
  p = p * s - 1.0 / 5040;
  p = p * s + 1.0 / 120;
  p = p * s - 1.0 / 6;
  return r + r * s * p;
}
WEFT_INLINE double cosine_polynomial(double r) {
  double s = r * r;
  double p = 1.0 / 479001600;
  p = p * s - 1.0 / 3628800;
  p = p * s + 1.0 / 40320;
  p = p * s - 1.0 / 720;
  p = p * s + 1.0 / 24;
  return 1.0 - 0.5 * s + s * s * p;
}

WEFT_INLINE void reduced_cosine_and_sine(double angle, float* cosine, float* sine) {
  constexpr double magic = 0x1.8p52;  // adding it rounds to the nearest integer
  double quarters = (angle * 0.63661977236758134308 + magic) - magic;
  double r = ((angle - quarters * kHalfPi1) - quarters * kHalfPi2) - quarters * kHalfPi3;
  double s = sine_polynomial(r), c = cosine_polynomial(r);
  int32_t q = static_cast<int32_t>(quarters);
  double x = q & 1 ? s : c, y = q & 1 ? c : s;
  *cosine = static_cast<float>((q + 1) & 2 ? -x : x);
  *sine = static_cast<float>(q & 2 ? -y : y);
}

// cosine[i], sine[i] of position * frequency[i], the product rounded to f32, for i < n; then both times scale.
WEFT_INLINE void cosines_and_sines(float position, const float* frequency, int64_t n, float scale, float* cosine,
                                   float* sine) {
  bool small = true;
  for (int64_t i = 0; i < n; ++i) small &= __builtin_fabsf(position * frequency[i]) <= kLargestReduced;
  if (small)
    for (int64_t i = 0; i < n; ++i) reduced_cosine_and_sine(position * frequency[i], cosine + i, sine + i);
  else
    for (int64_t i = 0; i < n; ++i) {
      double angle = position * frequency[i];
      cosine[i] = static_cast<float>(::cos(angle));
      sine[i] = static_cast<float>(::sin(angle));
    }
  for (int64_t i = 0; i < n; ++i) cosine[i] *= scale, sine[i] *= scale;
}

}  // namespace weft::ISA
