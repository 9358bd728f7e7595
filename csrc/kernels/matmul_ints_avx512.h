// matmul_ints at level avx512: one register a vector; vpdpbusd multiplies and adds four bytes a lane.
#pragma once

namespace weft::ISA {

struct i32x16 {
  __m512i v;
};
struct u8x64 {
  __m512i v;
};
struct pairs {
  __m512i v;
};

WEFT_INLINE i32x16 zero_i() { return {_mm512_setzero_si512()}; }
WEFT_INLINE i32x16 splat_i(const int32_t* p) { return {_mm512_set1_epi32(*p)}; }
WEFT_INLINE i32x16 operator+(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
WEFT_INLINE i32x16 operator*(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
WEFT_INLINE f32x16 to_float(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

WEFT_INLINE u8x64 load_bytes(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
WEFT_INLINE u8x64 operator|(u8x64 a, u8x64 b) { return {_mm512_or_si512(a.v, b.v)}; }
// Bits [at, at + count) of each byte, moved to bit `to`.
template <int at, int count, int to>
WEFT_INLINE u8x64 bits(u8x64 a) {
  constexpr char mask = static_cast<char>(((1 << count) - 1) << to);
  if constexpr (count == 8) return a;
  if constexpr (at > to) a.v = _mm512_srli_epi16(a.v, at - to);
  if constexpr (at < to) a.v = _mm512_slli_epi16(a.v, to - at);
  return {_mm512_and_si512(a.v, _mm512_set1_epi8(mask))};
}
WEFT_INLINE u8x64 look_up(const uint8_t* levels, u8x64 index) {
  __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(levels));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index.v)};
}
template <int i>
WEFT_INLINE i32x16 byte_of(u8x64 a) {
  return {_mm512_and_si512(_mm512_srli_epi32(a.v, 8 * i), _mm512_set1_epi32(255))};
}

// Bytes [16 lanes][2], as 16-bit integers.
template <bool is_signed>
WEFT_INLINE pairs load_pairs(const std::byte* p) {
  __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {is_signed ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes)};
}
WEFT_INLINE pairs low_nibbles(pairs a) { return {_mm512_and_si512(a.v, _mm512_set1_epi16(15))}; }
WEFT_INLINE pairs high_nibbles(pairs a) { return {_mm512_srli_epi16(a.v, 4)}; }
WEFT_INLINE i32x16 even(pairs a) { return {_mm512_srai_epi32(_mm512_slli_epi32(a.v, 16), 16)}; }
WEFT_INLINE i32x16 odd(pairs a) { return {_mm512_srai_epi32(a.v, 16)}; }
WEFT_INLINE i32x16 dot_pairs(i32x16 acc, pairs a, const int16_t* two) {
  return {_mm512_dpwssd_epi32(acc.v, a.v, _mm512_set1_epi32(four_bytes(two)))};
}

// The sum of (code - offset) * x over `groups` vectors of codes up to `limit`. The instruction takes unsigned codes;
// `start`, -offset times the sum of x, makes up for it.
template <int limit, int groups>
WEFT_INLINE i32x16 dot(i32x16 start, const u8x64* codes, const int8_t* x) {
#pragma GCC unroll 8
  for (int g = 0; g < groups; ++g)
    start.v = _mm512_dpbusd_epi32(start.v, codes[g].v, _mm512_set1_epi32(four_bytes(x + g * 4)));
  return start;
}

// The same for n rows of x, `stride` bytes apart: products of one vector of codes stand together, since those of one row
// wait for each other.
constexpr int kTogether = 8;
template <int limit, int groups, int n>
WEFT_INLINE void dot_rows(i32x16* total, const u8x64* codes, const int8_t* x, int64_t stride) {
#pragma GCC unroll 8
  for (int g = 0; g < groups; ++g)
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r)
      total[r].v = _mm512_dpbusd_epi32(total[r].v, codes[g].v, _mm512_set1_epi32(four_bytes(x + r * stride + g * 4)));
}

// The sum of 16 signed bytes: of unsigned ones, 128 more each, by the instruction for distances.
WEFT_INLINE int sum_bytes(__m128i bytes) {
  const __m128i halves = _mm_sad_epu8(_mm_xor_si128(bytes, _mm_set1_epi8(-128)), _mm_setzero_si128());
  return _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 16 * 128;
}
WEFT_INLINE int store_i8(int8_t* p, f32x16 a) {
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
  return sum_bytes(bytes);
}

}  // namespace weft::ISA
