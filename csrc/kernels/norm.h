// norm: one row through each of the norms, shared by the plain kernels and those that add first.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

// The factor of a row's elements, before their weights.
WEFT_INLINE f32x16 rms_scale(const float* x, int64_t dim, float eps) {
  return splat(1.0f / __builtin_sqrtf(sum_of_squares(x, dim) / static_cast<float>(dim) + eps));
}

// to may be x
WEFT_INLINE void rms_norm_row(float* to, const float* x, const float* weight, int64_t dim, float eps) {
  const f32x16 scale = rms_scale(x, dim, eps);
  fill(to, dim, [&](auto at) { return at(x) * scale * at(weight); });
}

// The variance is that of the centred values, so that a large mean costs no digits. to may be x.
WEFT_INLINE void layer_norm_row(float* to, const float* x, const float* weight, const float* bias, int64_t dim,
                                float eps) {
  const float count = static_cast<float>(dim);
  f32x16 mean = splat(sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return acc + at(x); })) / count);
  float squares = sum(fold(dim, zero(), [&](auto at, f32x16 acc) {
    f32x16 centred = at.or_else(at(x) - mean, zero());
    return fma(centred, centred, acc);
  }));
  f32x16 scale = splat(1.0f / __builtin_sqrtf(squares / count + eps));
  fill(to, dim, [&](auto at) { return fma((at(x) - mean) * scale, at(weight), at(bias)); });
}

}  // namespace weft::ISA
