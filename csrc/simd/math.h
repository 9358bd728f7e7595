// math: exp, erf, tanh, sigmoid and the activations on f32x16, written with the vector layer so that they are the same
// at every level. Errors below were measured against double precision over 2^24 points of each range, at the levels
// with a fused multiply-add; the scalar level is in brackets where it differs.
#pragma once
#include "core/words.h"

namespace weft::ISA {

// e^x = 2^n (1 + m), x = n ln2 + r, |r| <= ln2/2, m = e^r - 1.
struct ExpParts {
  f32x16 n, m;
};

// m = r + r^2 q(r), with q the weighted minimax polynomial of degree 4 (3e-9 of e^r). ln2 is split in two, the first
// part short enough for n * ln2_high to be exact.
WEFT_INLINE ExpParts exp_parts(f32x16 x, f32x16 n) {
  f32x16 r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  f32x16 q = splat(1.38146128e-3f);
  q = fma(q, r, splat(8.36871006e-3f));
  q = fma(q, r, splat(4.16683890e-2f));
  q = fma(q, r, splat(1.66665211e-1f));
  q = fma(q, r, splat(4.99999940e-1f));
  return {n, fma(r * r, q, r)};
}
constexpr float kLog2E = 1.44269504088896341f;
WEFT_INLINE ExpParts exp_parts(f32x16 x) { return exp_parts(x, round(x * splat(kLog2E))); }

// e^x, within 1.1 ulp. Above 88.73 the result is inf; below -87.33, where it would be subnormal, it is 0 by choice and
// not by underflow, which costs the machine some 150 cycles, in softmax for every masked key. 2^n goes in two steps
// because n = 128 is needed. The clamping is written so that NaN stays NaN.
WEFT_INLINE f32x16 exp(f32x16 x) {
  const f32x16 lowest = splat(-87.33f);
  ExpParts e = exp_parts(min(splat(89.0f), max(lowest, x)));
  f32x16 half = round(e.n * splat(0.5f));
  f32x16 result = (e.m + splat(1.0f)) * exp2_integer(half) * exp2_integer(e.n - half);
  return where_less(x, lowest, zero(), result);
}

// exp of x <= 0, or NaN, to the same bits and in half as many steps: nothing overflows, nothing is subnormal, and n goes
// from the lowest bits of a sum into the exponent.
WEFT_INLINE f32x16 exp_negative(f32x16 x) {
  const f32x16 big = splat(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded, and lies in the lowest bits
  const f32x16 bounded = max(splat(-87.33f), x), n = bounded * splat(kLog2E) + big;
  const f32x16 result = raise_exponent(exp_parts(bounded, n - big).m + splat(1.0f), n);
  return where_less(splat(-87.33001f), x, result, max(zero(), x));  // the float below -87.33; a NaN is not below x
}

// 2^x for x <= 0, within 1.1e-4 of it, and exactly 1 at 0: for results that are rounded to bfloat16. Below -125 the
// result is 2^-125, so that nothing is subnormal. A NaN stays one if its lowest 9 bits are 0, as those of bfloat16 are.
WEFT_INLINE f32x16 exp2_coarse(f32x16 x) {
  const f32x16 big = splat(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded, and lies in the lowest bits
  x = max(splat(-125.0f), x);
  const f32x16 n = x + big, f = x - (n - big);
  f32x16 p = splat(5.50089329e-02f);
  p = fma(p, f, splat(2.42210969e-01f));
  p = fma(p, f, splat(6.93282902e-01f));
  p = fma(p, f, splat(1.0f));
  return raise_exponent(p, n);
}

// e^x - 1 for x <= 0, without cancellation near 0.
WEFT_INLINE f32x16 expm1_negative(f32x16 x) {
  ExpParts e = exp_parts(max(splat(-80.0f), x));
  f32x16 power = exp2_integer(e.n);
  return fma(power, e.m, power - splat(1.0f));
}

// -log(erfc(z)) for z >= 0, as z P(z): P of degree 9 fitted on [0, 4] for the error of erfc (9e-9 absolute, 5e-6
// relative) and increasing beyond, so that the tails go to their limits monotonically.
WEFT_INLINE f32x16 minus_log_erfc(f32x16 z) {
  f32x16 p = splat(7.5163797e-07f);
  p = fma(p, z, splat(-1.52289203e-05f));
  p = fma(p, z, splat(1.32821311e-04f));
  p = fma(p, z, splat(-6.36580575e-04f));
  p = fma(p, z, splat(1.61850755e-03f));
  p = fma(p, z, splat(-6.74457406e-05f));
  p = fma(p, z, splat(-1.92279872e-02f));
  p = fma(p, z, splat(1.02806807e-01f));
  p = fma(p, z, splat(6.36614442e-01f));
  p = fma(p, z, splat(1.12837946f));
  return p * z;
}

WEFT_INLINE f32x16 with_sign_of(f32x16 x, f32x16 magnitude) {
  return where_less(x, zero(), zero() - magnitude, magnitude);
}

// Absolute error 7.4e-8 (7.8e-8), relative error 4.3e-7; monotone; exactly +-1 from 3.93 on.
WEFT_INLINE f32x16 erf(f32x16 x) {
  f32x16 one_minus_erfc = zero() - expm1_negative(zero() - minus_log_erfc(abs(x)));
  return with_sign_of(x, one_minus_erfc);
}

// tanh|x| = (1 - t) / (1 + t) with t = e^(-2|x|); by way of t - 1, small arguments keep all their digits.
// Relative error 1.8e-7; monotone.
WEFT_INLINE f32x16 tanh(f32x16 x) {
  f32x16 t = expm1_negative(abs(x) * splat(-2.0f));  // t - 1
  return with_sign_of(x, (zero() - t) / (t + splat(2.0f)));
}

// Relative error 1.5e-7 above -87; 0 below -88.73. The same for silu, 1.8e-7.
WEFT_INLINE f32x16 sigmoid(f32x16 x) { return splat(1.0f) / (splat(1.0f) + exp(zero() - x)); }

WEFT_INLINE f32x16 silu(f32x16 x) { return x / (splat(1.0f) + exp(zero() - x)); }

// x sigmoid(1.702 x)
WEFT_INLINE f32x16 quick_gelu(f32x16 x) { return x / (splat(1.0f) + exp(splat(-1.702f) * x)); }

#if !defined(WEFT_ISA_neon)
WEFT_INLINE f32x16 at_most(f32x16 a, float b) { return min(a, splat(b)); }
WEFT_INLINE f32x16 at_least_zero(f32x16 a) { return max(a, zero()); }
#endif

// x/2 (1 + erf(x / sqrt 2)). With c = erfc(|x| / sqrt 2) the bracket is 2 - c or, for a negative x, c itself, so that
// the left tail does not cancel. Absolute error 1.1e-7 * max(1, |x|).
WEFT_INLINE f32x16 gelu(f32x16 x) {
  f32x16 c = exp(zero() - minus_log_erfc(abs(x) * splat(0.70710678f)));
  return splat(0.5f) * x * where_less(x, zero(), c, splat(2.0f) - c);
}

// The same as max(x, 0) - t Φ(-t), t = |x|, with a polynomial of t: a third of the work, for results that are rounded to
// bfloat16. Absolute error 5.2e-5, half a unit in the last place of a bfloat16 of 0.02.
WEFT_INLINE f32x16 gelu_coarse(f32x16 x) {
  const f32x16 t = at_most(abs(x), 4.1f);
  f32x16 p = splat(-3.96425544e-05f);
  p = fma(p, t, splat(6.51535688e-04f));
  p = fma(p, t, splat(-3.69432356e-03f));
  p = fma(p, t, splat(4.95491686e-03f));
  p = fma(p, t, splat(3.01824809e-02f));
  p = fma(p, t, splat(-1.15376116e-01f));
  p = fma(p, t, splat(3.70204946e-02f));
  p = fma(p, t, splat(3.86231010e-01f));
  p = fma(p, t, splat(-4.98548792e-01f));
  return fma(p, t, at_least_zero(x));
}

// The same with two terms fewer, for results that are rounded to int8. Absolute error 1.5e-4.
WEFT_INLINE f32x16 gelu_rough(f32x16 x) {
  const f32x16 t = at_most(abs(x), 3.9f);
  f32x16 p = splat(6.86539337e-04f);
  p = fma(p, t, splat(-1.04902824e-02f));
  p = fma(p, t, splat(6.04660735e-02f));
  p = fma(p, t, splat(-1.47272587e-01f));
  p = fma(p, t, splat(5.21802343e-02f));
  p = fma(p, t, splat(3.85197252e-01f));
  p = fma(p, t, splat(-4.99329895e-01f));
  return fma(p, t, at_least_zero(x));
}

// x/2 (1 + tanh u) = x / (1 + e^(-2u)) with u = sqrt(2/pi) (x + 0.044715 x^3). Absolute error 1.2e-7 * max(1, |x|).
WEFT_INLINE f32x16 gelu_tanh(f32x16 x) {
  f32x16 minus_2u = x * fma(x * x, splat(-0.0713548162726f), splat(-1.5957691216f));
  return x / (splat(1.0f) + exp(minus_2u));
}

WEFT_INLINE f32x16 relu(f32x16 x) { return max(zero(), x); }  // NaN stays NaN

WEFT_INLINE f32x16 relu2(f32x16 x) { return relu(x) * relu(x); }

// log(1 + e^x) = max(x, 0) + log(1 + u) with u = e^-|x|, and log(1 + u) = 2 atanh z with z = u / (2 + u), at most 1/3: seven
// terms of its series leave 1e-8. Relative error 3e-7 above -87; 0 below -88.73.
WEFT_INLINE f32x16 softplus(f32x16 x) {
  const f32x16 u = exp(zero() - abs(x)), z = u / (u + splat(2.0f)), square = z * z;
  f32x16 p = splat(2.0f / 13);
  p = fma(p, square, splat(2.0f / 11));
  p = fma(p, square, splat(2.0f / 9));
  p = fma(p, square, splat(2.0f / 7));
  p = fma(p, square, splat(2.0f / 5));
  p = fma(p, square, splat(2.0f / 3));
  p = fma(p, square, splat(2.0f));
  return fma(p, z, relu(x));
}

template <Activation kind>
WEFT_INLINE f32x16 activate(f32x16 v) {
  if constexpr (kind == Activation::gelu) return gelu(v);
  if constexpr (kind == Activation::gelu_tanh) return gelu_tanh(v);
  if constexpr (kind == Activation::silu) return silu(v);
  if constexpr (kind == Activation::relu) return relu(v);
  if constexpr (kind == Activation::tanh) return tanh(v);
  if constexpr (kind == Activation::sigmoid) return sigmoid(v);
  if constexpr (kind == Activation::softplus) return softplus(v);
  if constexpr (kind == Activation::relu2) return relu2(v);
  if constexpr (kind == Activation::quick_gelu) return quick_gelu(v);
  return v;
}

template <Activation kind>
WEFT_INLINE f32x16 activate_coarse(f32x16 v) {
  if constexpr (kind == Activation::gelu) return gelu_coarse(v);
  else return activate<kind>(v);
}

template <Activation kind>
WEFT_INLINE f32x16 activate_rough(f32x16 v) {
  if constexpr (kind == Activation::gelu) return gelu_rough(v);
  else return activate<kind>(v);
}

// Calls f with the activation as a compile-time constant, so that the choice is made outside the loop:
//   with_activation(kind, [&](auto k) { for (…) … activate<k()>(v) … });
template <Activation kind>
struct ActivationConstant {
  constexpr Activation operator()() const { return kind; }
};
template <class F>
WEFT_INLINE void with_activation(Activation kind, F f) {
  switch (kind) {
    case Activation::none: return f(ActivationConstant<Activation::none>{});
    case Activation::gelu: return f(ActivationConstant<Activation::gelu>{});
    case Activation::gelu_tanh: return f(ActivationConstant<Activation::gelu_tanh>{});
    case Activation::silu: return f(ActivationConstant<Activation::silu>{});
    case Activation::relu: return f(ActivationConstant<Activation::relu>{});
    case Activation::tanh: return f(ActivationConstant<Activation::tanh>{});
    case Activation::sigmoid: return f(ActivationConstant<Activation::sigmoid>{});
    case Activation::softplus: return f(ActivationConstant<Activation::softplus>{});
    case Activation::relu2: return f(ActivationConstant<Activation::relu2>{});
    case Activation::quick_gelu: return f(ActivationConstant<Activation::quick_gelu>{});
  }
}

WEFT_INLINE f32x16 activate(Activation kind, f32x16 v) {
  with_activation(kind, [&](auto k) { v = activate<k()>(v); });
  return v;
}

}  // namespace weft::ISA
