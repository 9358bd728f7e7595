// scalar: f32x16 as an array, for machines without a written level. No fused multiply-add: the baseline has none.
#pragma once
#include <cmath>

#include "core/half.h"

namespace weft::ISA {

struct f32x16 {
  float v[16];
};

#define WEFT_LANES for (int i = 0; i < 16; ++i)

template <class F>
WEFT_INLINE f32x16 lanes(F f) {
  f32x16 r;
  WEFT_LANES r.v[i] = f(i);
  return r;
}

WEFT_INLINE f32x16 splat(float x) { return lanes([=](int) { return x; }); }
WEFT_INLINE f32x16 zero() { return splat(0.0f); }
WEFT_INLINE f32x16 load(const float* p) { return lanes([=](int i) { return p[i]; }); }
WEFT_INLINE void store(float* p, f32x16 a) { WEFT_LANES p[i] = a.v[i]; }
WEFT_INLINE f32x16 load_n(const float* p, int64_t n) { return lanes([=](int i) { return i < n ? p[i] : 0.0f; }); }
WEFT_INLINE void store_n(float* p, f32x16 a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = a.v[i];
}
WEFT_INLINE f32x16 load_f16_n(const uint16_t* p, int64_t n) {
  return lanes([=](int i) { return i < n ? half_to_float(p[i]) : 0.0f; });
}
WEFT_INLINE f32x16 load_f16(const uint16_t* p) { return load_f16_n(p, 16); }
WEFT_INLINE void store_f16_n(uint16_t* p, f32x16 a, int64_t n) {
  for (int i = 0; i < 16 && i < n; ++i) p[i] = float_to_half(a.v[i]);
}
WEFT_INLINE void store_f16(uint16_t* p, f32x16 a) { store_f16_n(p, a, 16); }
WEFT_INLINE f32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  return lanes([=](int i) { return i < n ? bf16_to_float(p[i]) : 0.0f; });
}
WEFT_INLINE f32x16 load_bf16(const uint16_t* p) { return load_bf16_n(p, 16); }

WEFT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return lanes([&](int i) { return a.v[i] + b.v[i]; }); }
WEFT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return lanes([&](int i) { return a.v[i] - b.v[i]; }); }
WEFT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return lanes([&](int i) { return a.v[i] * b.v[i]; }); }
WEFT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return lanes([&](int i) { return a.v[i] / b.v[i]; }); }
WEFT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return lanes([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
// The second operand when either is NaN, as the x86 instructions do.
WEFT_INLINE f32x16 max(f32x16 a, f32x16 b) { return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; }); }
WEFT_INLINE f32x16 min(f32x16 a, f32x16 b) { return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; }); }
WEFT_INLINE f32x16 sqrt(f32x16 a) { return lanes([&](int i) { return __builtin_sqrtf(a.v[i]); }); }
WEFT_INLINE f32x16 abs(f32x16 a) { return lanes([&](int i) { return __builtin_fabsf(a.v[i]); }); }
WEFT_INLINE f32x16 round(f32x16 a) { return lanes([&](int i) { return __builtin_rintf(a.v[i]); }); }
WEFT_INLINE f32x16 where_less(f32x16 x, f32x16 y, f32x16 a, f32x16 b) {
  return lanes([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; });
}
// 1.5 * 2^23 + 127 leaves n + 127 in the low bits of the sum; the shift makes it the exponent. NaN needs no care.
WEFT_INLINE f32x16 exp2_integer(f32x16 n) {
  return lanes([&](int i) { return bit_cast<float>(bit_cast<uint32_t>(n.v[i] + 12583039.0f) << 23); });
}

WEFT_INLINE float sum(f32x16 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}
WEFT_INLINE float max_lane(f32x16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

#undef WEFT_LANES
}  // namespace weft::ISA
