// round_bf16: 16 floats to bfloat16, as float_to_bf16_normal in core/half.h does it.
#pragma once
#include "core/half.h"
#include "simd/simd.h"

namespace weft::ISA {

#if defined(WEFT_ISA_amx)
WEFT_INLINE void store_rounded(uint16_t* to, f32x16 x) {
  const __m256bh narrow = _mm512_cvtneps_pbh(x.v);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<const __m256i&>(narrow));
}
#elif defined(WEFT_ISA_avx512)
WEFT_INLINE void store_rounded(uint16_t* to, f32x16 x) {
  const __m512i bits = _mm512_castps_si512(x.v), size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i infinite = _mm512_set1_epi32(0x7F800000), smallest = _mm512_set1_epi32(0x00800000);
  __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  near = _mm512_mask_or_epi32(near, _mm512_cmpgt_epi32_mask(size, infinite), bits, _mm512_set1_epi32(0x00400000));
  near = _mm512_mask_andnot_epi32(near, _mm512_cmplt_epi32_mask(size, smallest), _mm512_set1_epi32(0x7FFFFFFF), bits);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16)));
}
#elif defined(WEFT_ISA_avx2)
WEFT_INLINE __m256i rounded8(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i none = _mm256_andnot_si256(_mm256_set1_epi32(0x7FFFFFFF), bits);
  const __m256i is_nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7F800000));
  const __m256i is_tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), size);
  return _mm256_srli_epi32(_mm256_blendv_epi8(_mm256_blendv_epi8(near, quiet, is_nan), none, is_tiny), 16);
}
WEFT_INLINE void store_rounded(uint16_t* to, f32x16 x) {
  const __m256i words = _mm256_packus_epi32(rounded8(x.lo), rounded8(x.hi));  // within 128-bit halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(words, 0xD8));
}
#else
WEFT_INLINE void store_rounded(uint16_t* to, f32x16 x) {
  alignas(64) float lane[16];
  store(lane, x);
  for (int i = 0; i < 16; ++i) {  // without branches, so that the compiler makes vectors of it
    const uint32_t bits = bit_cast<uint32_t>(lane[i]), size = bits & 0x7FFFFFFFu;
    const uint32_t near = bits + 0x7FFFu + ((bits >> 16) & 1u), quiet = bits | 0x00400000u, none = bits & 0x80000000u;
    to[i] = static_cast<uint16_t>((size > 0x7F800000u ? quiet : size < 0x00800000u ? none : near) >> 16);
  }
}
#endif

// Up to 16 of them.
WEFT_INLINE void store_rounded_n(uint16_t* to, f32x16 x, int64_t count) {
  if (count >= 16) return store_rounded(to, x);
  alignas(64) uint16_t all[16];
  store_rounded(all, x);
  for (int64_t i = 0; i < count; ++i) to[i] = all[i];
}

// Up to 16 as the sum of two each: the second is the remainder of the first.
WEFT_INLINE void store_split(uint16_t* high, uint16_t* low, f32x16 x, int64_t count) {
  alignas(64) uint16_t first[16];
  store_rounded(first, x);
  store_rounded_n(high, x, count);
  store_rounded_n(low, x - load_bf16(first), count);
}

}  // namespace weft::ISA
