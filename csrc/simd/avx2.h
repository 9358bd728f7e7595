// avx2: f32x16 in two registers. Needs AVX2, FMA and F16C.
#pragma once
#include <immintrin.h>

namespace weft::ISA {

struct f32x16 {
  __m256 lo, hi;
};

WEFT_INLINE __m256i first8(int64_t n) {  // all ones in the first n of 8 lanes
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  int clamped = n < 0 ? 0 : n > 8 ? 8 : static_cast<int>(n);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(clamped), lane);
}

WEFT_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
WEFT_INLINE f32x16 splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
WEFT_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
WEFT_INLINE void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
WEFT_INLINE f32x16 load_n(const float* p, int64_t n) {
  return {_mm256_maskload_ps(p, first8(n)), n > 8 ? _mm256_maskload_ps(p + 8, first8(n - 8)) : _mm256_setzero_ps()};
}
WEFT_INLINE void store_n(float* p, f32x16 a, int64_t n) {
  _mm256_maskstore_ps(p, first8(n), a.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, first8(n - 8), a.hi);
}

WEFT_INLINE __m256 widen_f16(__m128i bits) { return _mm256_cvtph_ps(bits); }
WEFT_INLINE __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
WEFT_INLINE __m128i load8_u16(const uint16_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
WEFT_INLINE void copy_u16(uint16_t* to, const uint16_t* from, int64_t n) {
  for (int64_t i = 0; i < n && i < 16; ++i) to[i] = from[i];
}
WEFT_INLINE f32x16 load_f16(const uint16_t* p) { return {widen_f16(load8_u16(p)), widen_f16(load8_u16(p + 8))}; }
WEFT_INLINE f32x16 load_f16_n(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t part[16] = {};
  copy_u16(part, p, n);
  return load_f16(part);
}
WEFT_INLINE void store_f16(uint16_t* p, f32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
WEFT_INLINE void store_f16_n(uint16_t* p, f32x16 a, int64_t n) {
  alignas(32) uint16_t part[16];
  store_f16(part, a);
  copy_u16(p, part, n);
}
WEFT_INLINE f32x16 load_bf16(const uint16_t* p) { return {widen_bf16(load8_u16(p)), widen_bf16(load8_u16(p + 8))}; }
WEFT_INLINE f32x16 load_bf16_n(const uint16_t* p, int64_t n) {
  alignas(32) uint16_t part[16] = {};
  copy_u16(part, p, n);
  return load_bf16(part);
}

// 16 pairs of bfloat16, the first and the second of each
WEFT_INLINE void load_bf16_pairs(const uint16_t* p, f32x16& first, f32x16& second) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
  first = {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  second = {_mm256_castsi256_ps(_mm256_and_si256(low, mask)), _mm256_castsi256_ps(_mm256_and_si256(high, mask))};
}

WEFT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
WEFT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
WEFT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
WEFT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
WEFT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
WEFT_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
WEFT_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
WEFT_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
WEFT_INLINE f32x16 abs(f32x16 a) {
  __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
WEFT_INLINE f32x16 round(f32x16 a) {  // nearest even
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
// a where x < y, else b, lane by lane
WEFT_INLINE f32x16 where_less(f32x16 x, f32x16 y, f32x16 a, f32x16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}
WEFT_INLINE __m256 exp2_integer8(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
// 2^n for integral n in [-126, 127]
WEFT_INLINE f32x16 exp2_integer(f32x16 n) { return {exp2_integer8(n.lo), exp2_integer8(n.hi)}; }

// p with the lowest 9 bits of n added to its exponent
WEFT_INLINE __m256 raise_exponent8(__m256 p, __m256 n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}
WEFT_INLINE f32x16 raise_exponent(f32x16 p, f32x16 n) { return {raise_exponent8(p.lo, n.lo), raise_exponent8(p.hi, n.hi)}; }

WEFT_INLINE float sum(f32x16 a) {
  __m256 h = _mm256_add_ps(a.lo, a.hi);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
WEFT_INLINE float max_lane(f32x16 a) {
  __m256 h = _mm256_max_ps(a.lo, a.hi);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

}  // namespace weft::ISA
