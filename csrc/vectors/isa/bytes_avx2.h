// bytes: the building blocks of ints.cpp, 32 bytes at a time; the tail through a copy that ends in zeros.
#pragma once
#include <immintrin.h>

#include <cstring>

namespace weft::ISA {

WEFT_INLINE __m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
WEFT_INLINE __m256i load32_n(const uint8_t* p, int64_t n) {
  alignas(32) uint8_t part[32] = {};
  std::memcpy(part, p, static_cast<size_t>(n));
  return load32(part);
}
WEFT_INLINE int32_t sum_i32(__m256i a) {
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xB1)));
}

// f(a, b, sum) for every 32 bytes; zeros at the end add nothing.
template <class F>
WEFT_INLINE int32_t over_bytes(const uint8_t* a, const uint8_t* b, int64_t n, F f) {
  __m256i even = _mm256_setzero_si256(), odd = even;
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    even = f(load32(a + i), load32(b + i), even);
    odd = f(load32(a + i + 32), load32(b + i + 32), odd);
  }
  if (i + 32 <= n) even = f(load32(a + i), load32(b + i), even), i += 32;
  if (i < n) odd = f(load32_n(a + i, n - i), load32_n(b + i, n - i), odd);
  return sum_i32(_mm256_add_epi32(even, odd));
}

// The correction of dot_bytes for a query: none at this level.
WEFT_INLINE int32_t dot_excess(const uint8_t*, int64_t) { return 0; }

// In 16 bits, where no product of bytes saturates.
WEFT_INLINE int32_t dot_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  return over_bytes(a, b, n, [](__m256i x, __m256i y, __m256i s) WEFT_LAMBDA {
    const __m256i low = _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)),
                                          _mm256_cvtepi8_epi16(_mm256_castsi256_si128(y)));
    const __m256i high = _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm256_extracti128_si256(x, 1)),
                                           _mm256_cvtepi8_epi16(_mm256_extracti128_si256(y, 1)));
    return _mm256_add_epi32(s, _mm256_add_epi32(low, high));
  });
}

// 128 more than each, as unsigned bytes; the instruction leaves its sums in the low 16 bits of 64.
WEFT_INLINE int32_t apart_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m256i flip = _mm256_set1_epi8(-128);
  return over_bytes(a, b, n, [=](__m256i x, __m256i y, __m256i s) WEFT_LAMBDA {
    return _mm256_add_epi32(s, _mm256_sad_epu8(_mm256_xor_si256(x, flip), _mm256_xor_si256(y, flip)));
  });
}

WEFT_INLINE int32_t dot_nibbles(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  return over_bytes(a, b, n, [=](__m256i x, __m256i y, __m256i s) WEFT_LAMBDA {
    const auto high = [&](__m256i v) WEFT_LAMBDA { return _mm256_and_si256(_mm256_srli_epi16(v, 4), mask); };
    const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(x, mask), _mm256_and_si256(y, mask));
    const __m256i both = _mm256_add_epi16(low, _mm256_maddubs_epi16(high(x), high(y)));  // at most 900
    return _mm256_add_epi32(s, _mm256_madd_epi16(both, ones));
  });
}

WEFT_INLINE int32_t differing_bits(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m256i mask = _mm256_set1_epi8(15);
  const __m256i count = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                         0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
  return over_bytes(a, b, n, [=](__m256i x, __m256i y, __m256i s) WEFT_LAMBDA {
    const __m256i v = _mm256_xor_si256(x, y);
    const __m256i low = _mm256_shuffle_epi8(count, _mm256_and_si256(v, mask));
    const __m256i high = _mm256_shuffle_epi8(count, _mm256_and_si256(_mm256_srli_epi16(v, 4), mask));
    return _mm256_add_epi32(s, _mm256_sad_epu8(_mm256_add_epi8(low, high), _mm256_setzero_si256()));
  });
}

}  // namespace weft::ISA
