// avx512: f32x16 in one register. Needs F, BW, DQ, VL and VNNI.
#pragma once
// GCC 12's own header warns about the undefined values it makes on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

namespace weft::ISA {

struct f32x16 {
  __m512 v;
};

WEFT_INLINE __mmask16 first(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xFFFF : (1u << n) - 1u); }

WEFT_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }
WEFT_INLINE f32x16 splat(float x) { return {_mm512_set1_ps(x)}; }
WEFT_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
WEFT_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
WEFT_INLINE f32x16 load_n(const float* p, int64_t n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
WEFT_INLINE void store_n(float* p, f32x16 a, int64_t n) { _mm512_mask_storeu_ps(p, first(n), a.v); }

WEFT_INLINE f32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
WEFT_INLINE f32x16 load_f16_n(const uint16_t* p, int64_t n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p))}; }
WEFT_INLINE void store_f16(uint16_t* p, f32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
WEFT_INLINE void store_f16_n(uint16_t* p, f32x16 a, int64_t n) {
  _mm256_mask_storeu_epi16(p, first(n), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
WEFT_INLINE f32x16 widen_bf16(__m256i bits) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
WEFT_INLINE f32x16 load_bf16(const uint16_t* p) { return widen_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
WEFT_INLINE f32x16 load_bf16_n(const uint16_t* p, int64_t n) { return widen_bf16(_mm256_maskz_loadu_epi16(first(n), p)); }

// 16 pairs of bfloat16, the first and the second of each
WEFT_INLINE void load_bf16_pairs(const uint16_t* p, f32x16& first, f32x16& second) {
  const __m512i bits = _mm512_loadu_si512(p);
  first.v = _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
  second.v = _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
}

WEFT_INLINE f32x16 operator+(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
WEFT_INLINE f32x16 operator-(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
WEFT_INLINE f32x16 operator*(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
WEFT_INLINE f32x16 operator/(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
WEFT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
WEFT_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
WEFT_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
WEFT_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
WEFT_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
WEFT_INLINE f32x16 round(f32x16 a) {  // nearest even
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// a where x < y, else b, lane by lane
WEFT_INLINE f32x16 where_less(f32x16 x, f32x16 y, f32x16 a, f32x16 b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
// 2^n for integral n in [-126, 127]
WEFT_INLINE f32x16 exp2_integer(f32x16 n) {
  __m512i bits = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
  return {_mm512_castsi512_ps(bits)};
}

// p with the lowest 9 bits of n added to its exponent
WEFT_INLINE f32x16 raise_exponent(f32x16 p, f32x16 n) {
  const __m512i bits = _mm512_slli_epi32(_mm512_castps_si512(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), bits))};
}

WEFT_INLINE float sum(f32x16 a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
WEFT_INLINE float max_lane(f32x16 a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

}  // namespace weft::ISA
