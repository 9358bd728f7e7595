// slopes: the derivatives of the activations, at x.
#pragma once
#include "simd/simd.h"

namespace weft::ISA {

// Φ(x) + x φ(x); with c = erfc(|x| / sqrt 2), Φ is 1 - c / 2 or, for a negative x, c / 2, so that its tail does not cancel.
WEFT_INLINE f32x16 gelu_slope(f32x16 x) {
  const f32x16 half = splat(0.5f) * exp(zero() - minus_log_erfc(abs(x) * splat(0.70710678f)));
  const f32x16 below = where_less(x, zero(), half, splat(1.0f) - half);
  const f32x16 density = splat(0.39894228f) * exp(splat(-0.5f) * x * x);
  return fma(x, density, below);
}

// With s = (1 + tanh u) / 2 = 1 / (1 + e^(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): s + 2 x s (1 - s) u'.
WEFT_INLINE f32x16 gelu_tanh_slope(f32x16 x) {
  const f32x16 square = x * x;
  const f32x16 s = sigmoid(x * fma(square, splat(0.0713548162726f), splat(1.5957691216f)));
  const f32x16 twice_slope_of_u = fma(square, splat(0.2140644488178f), splat(1.5957691216f));
  return fma(x * twice_slope_of_u, s * (splat(1.0f) - s), s);
}

WEFT_INLINE f32x16 silu_slope(f32x16 x) {
  const f32x16 s = sigmoid(x);
  return s * fma(x, splat(1.0f) - s, splat(1.0f));
}

WEFT_INLINE f32x16 quick_gelu_slope(f32x16 x) {
  const f32x16 wide = splat(1.702f) * x, s = sigmoid(wide);
  return s * fma(wide, splat(1.0f) - s, splat(1.0f));
}

template <Activation kind>
WEFT_INLINE f32x16 slope(f32x16 x) {
  const f32x16 one = splat(1.0f);
  if constexpr (kind == Activation::gelu) return gelu_slope(x);
  if constexpr (kind == Activation::gelu_tanh) return gelu_tanh_slope(x);
  if constexpr (kind == Activation::silu) return silu_slope(x);
  if constexpr (kind == Activation::quick_gelu) return quick_gelu_slope(x);
  if constexpr (kind == Activation::relu) return where_less(zero(), x, one, zero());
  if constexpr (kind == Activation::relu2) return splat(2.0f) * relu(x);
  if constexpr (kind == Activation::softplus) return sigmoid(x);
  if constexpr (kind == Activation::sigmoid) {
    const f32x16 s = sigmoid(x);
    return s * (one - s);
  }
  if constexpr (kind == Activation::tanh) {
    // 1 - tanh^2 = 4 t / (1 + t)^2 with t = e^(-2|x|): no difference of almost equal numbers
    const f32x16 t = exp(splat(-2.0f) * abs(x)), sum = one + t;
    return splat(4.0f) * t / (sum * sum);
  }
  return one;
}

}  // namespace weft::ISA
