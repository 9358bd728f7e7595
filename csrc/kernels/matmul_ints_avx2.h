// matmul_ints at level avx2: two registers a vector; vpmaddubsw multiplies bytes and adds them two by two in 16 bits.
#pragma once

namespace weft::ISA {

struct i32x16 {
  __m256i lo, hi;
};
struct u8x64 {
  __m256i lo, hi;
};
struct pairs {
  __m256i lo, hi;
};

WEFT_INLINE i32x16 zero_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
WEFT_INLINE i32x16 splat_i(const int32_t* p) { return {_mm256_set1_epi32(*p), _mm256_set1_epi32(*p)}; }
WEFT_INLINE i32x16 operator+(i32x16 a, i32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
WEFT_INLINE i32x16 operator*(i32x16 a, i32x16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
WEFT_INLINE f32x16 to_float(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

WEFT_INLINE __m256i load32(const std::byte* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
WEFT_INLINE u8x64 load_bytes(const std::byte* p) { return {load32(p), load32(p + 32)}; }
WEFT_INLINE u8x64 operator|(u8x64 a, u8x64 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }

template <int at, int count, int to>
WEFT_INLINE __m256i bits32(__m256i a) {
  constexpr char mask = static_cast<char>(((1 << count) - 1) << to);
  if constexpr (count == 8) return a;
  if constexpr (at > to) a = _mm256_srli_epi16(a, at - to);
  if constexpr (at < to) a = _mm256_slli_epi16(a, to - at);
  return _mm256_and_si256(a, _mm256_set1_epi8(mask));
}
template <int at, int count, int to>
WEFT_INLINE u8x64 bits(u8x64 a) {
  return {bits32<at, count, to>(a.lo), bits32<at, count, to>(a.hi)};
}
WEFT_INLINE u8x64 look_up(const uint8_t* levels, u8x64 index) {
  __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(levels)));
  return {_mm256_shuffle_epi8(table, index.lo), _mm256_shuffle_epi8(table, index.hi)};
}
template <int i>
WEFT_INLINE i32x16 byte_of(u8x64 a) {
  return {_mm256_and_si256(_mm256_srli_epi32(a.lo, 8 * i), _mm256_set1_epi32(255)),
          _mm256_and_si256(_mm256_srli_epi32(a.hi, 8 * i), _mm256_set1_epi32(255))};
}

template <bool is_signed>
WEFT_INLINE __m256i widen16(const std::byte* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}
template <bool is_signed>
WEFT_INLINE pairs load_pairs(const std::byte* p) {
  return {widen16<is_signed>(p), widen16<is_signed>(p + 16)};
}
WEFT_INLINE pairs low_nibbles(pairs a) {
  return {_mm256_and_si256(a.lo, _mm256_set1_epi16(15)), _mm256_and_si256(a.hi, _mm256_set1_epi16(15))};
}
WEFT_INLINE pairs high_nibbles(pairs a) { return {_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)}; }
WEFT_INLINE __m256i even8(__m256i a) { return _mm256_srai_epi32(_mm256_slli_epi32(a, 16), 16); }
WEFT_INLINE i32x16 even(pairs a) { return {even8(a.lo), even8(a.hi)}; }
WEFT_INLINE i32x16 odd(pairs a) { return {_mm256_srai_epi32(a.lo, 16), _mm256_srai_epi32(a.hi, 16)}; }
WEFT_INLINE i32x16 dot_pairs(i32x16 acc, pairs a, const int16_t* two) {
  __m256i b = _mm256_set1_epi32(four_bytes(two));
  return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(a.lo, b)), _mm256_add_epi32(acc.hi, _mm256_madd_epi16(a.hi, b))};
}

WEFT_INLINE __m256i add_pairs(__m256i total, __m256i sums) {
  return _mm256_add_epi32(total, _mm256_madd_epi16(sums, _mm256_set1_epi16(1)));
}
// Codes of 8 bits would overflow 16-bit sums, so the sign moves to the other factor: |c| <= 128 and |x| <= 127 fit.
WEFT_INLINE __m256i signed_products(__m256i code, __m256i x) {
  code = _mm256_xor_si256(code, _mm256_set1_epi8(-128));
  return _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code));
}

// The sum of (code - offset) * x over `groups` vectors of codes up to `limit`. `start` is -offset times the sum of x.
template <int limit, int groups>
WEFT_INLINE i32x16 dot(i32x16 start, const u8x64* codes, const int8_t* x) {
  if constexpr (limit == 255) {  // the offset is 128: the codes are signed bytes already, `start` is not needed
    i32x16 total = zero_i();
#pragma GCC unroll 8
    for (int g = 0; g < groups; ++g) {
      __m256i four = _mm256_set1_epi32(four_bytes(x + g * 4));
      total = {add_pairs(total.lo, signed_products(codes[g].lo, four)),
               add_pairs(total.hi, signed_products(codes[g].hi, four))};
    }
    return total;
  }
  constexpr int fit = 32767 / (2 * 127 * limit);  // products of two that a 16-bit sum has room for
  __m256i lo = _mm256_setzero_si256(), hi = lo;
#pragma GCC unroll 8
  for (int g = 0; g < groups; ++g) {
    __m256i four = _mm256_set1_epi32(four_bytes(x + g * 4));
    lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(codes[g].lo, four));
    hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(codes[g].hi, four));
    if ((g + 1) % fit == 0 || g + 1 == groups) {
      start = {add_pairs(start.lo, lo), add_pairs(start.hi, hi)};
      lo = hi = _mm256_setzero_si256();
    }
  }
  return start;
}

// The sum of 16 signed bytes: of unsigned ones, 128 more each, by the instruction for distances.
WEFT_INLINE int sum_bytes(__m128i bytes) {
  const __m128i halves = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
}
WEFT_INLINE int store_i8(int8_t* p, f32x16 a) {
  __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
  words = _mm256_permute4x64_epi64(words, 0xD8);  // the pack works within 128-bit halves: put the quarters in order
  __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  return sum_bytes(bytes);
}

}  // namespace weft::ISA
