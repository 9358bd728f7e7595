// scalar: f32x16 for machines without a written level, in the compiler's portable vectors: it cuts them into what the
// baseline has. No fused multiply-add: the baseline has none.
#pragma once
#include "core/half.h"

namespace weft::ISA {

typedef float Floats __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));

struct f32x16 {
  Floats v;
};

template <class F>
WEFT_INLINE f32x16 lanes(F f) {
  f32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

WEFT_INLINE f32x16 zero() { return {Floats{}}; }
WEFT_INLINE f32x16 splat(float x) { return {Floats{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}}; }
WEFT_INLINE f32x16 load(const float* p) {
  f32x16 r;
  std::memcpy(&r.v, p, sizeof(r.v));
  return r;
}
WEFT_INLINE void store(float* p, f32x16 a) { std::memcpy(p, &a.v, sizeof(a.v)); }
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

// 16 pairs of bfloat16, the first and the second of each
WEFT_INLINE void load_bf16_pairs(const uint16_t* p, f32x16& first, f32x16& second) {
  first = lanes([=](int i) { return bf16_to_float(p[2 * i]); });
  second = lanes([=](int i) { return bf16_to_float(p[2 * i + 1]); });
}

WEFT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {a.v + b.v}; }
WEFT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {a.v - b.v}; }
WEFT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {a.v * b.v}; }
WEFT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {a.v / b.v}; }
WEFT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {a.v * b.v + c.v}; }
WEFT_INLINE f32x16 fused(f32x16 a, f32x16 b, f32x16 c) {
  return lanes([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// The second operand when either is NaN, as the x86 instructions do.
WEFT_INLINE f32x16 max(f32x16 a, f32x16 b) { return {a.v > b.v ? a.v : b.v}; }
WEFT_INLINE f32x16 min(f32x16 a, f32x16 b) { return {a.v < b.v ? a.v : b.v}; }
WEFT_INLINE f32x16 sqrt(f32x16 a) { return lanes([&](int i) { return __builtin_sqrtf(a.v[i]); }); }
WEFT_INLINE f32x16 abs(f32x16 a) { return {(Floats)((Words)a.v & 0x7FFFFFFFu)}; }
WEFT_INLINE f32x16 where_less(f32x16 x, f32x16 y, f32x16 a, f32x16 b) { return {x.v < y.v ? a.v : b.v}; }
// Nearest even: adding 1.5 * 2^23 leaves no room for a fraction. From 2^22 on every float is its own nearest.
WEFT_INLINE f32x16 round(f32x16 a) {
  const f32x16 big = splat(12582912.0f);
  return where_less(abs(a), splat(4194304.0f), (a + big) - big, a);
}
// 1.5 * 2^23 + 127 leaves n + 127 in the low bits of the sum; the shift makes it the exponent. NaN needs no care.
WEFT_INLINE f32x16 exp2_integer(f32x16 n) { return {(Floats)((Words)(n.v + 12583039.0f) << 23)}; }

// p with the lowest 9 bits of n added to its exponent
WEFT_INLINE f32x16 raise_exponent(f32x16 p, f32x16 n) { return {(Floats)((Words)p.v + ((Words)n.v << 23))}; }

WEFT_INLINE float sum(f32x16 a) {
  float lane[16];
  store(lane, a);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}
WEFT_INLINE float max_lane(f32x16 a) {
  float m = a.v[0];
  for (int i = 1; i < 16; ++i) m = a.v[i] > m ? a.v[i] : m;
  return m;
}

}  // namespace weft::ISA
