// bytes: the building blocks of ints.cpp, 64 bytes at a time, the tail masked.
#pragma once
// GCC 12's own header warns about the undefined values it makes on purpose.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

// For functions that count bits by one instruction: the level does not promise it, so they are chosen apart.
#define WEFT_POPCNT __attribute__((target("avx512vpopcntdq")))

namespace weft::ISA {

WEFT_INLINE __mmask64 first64(int64_t n) { return ~__mmask64{0} >> (64 - n); }  // 1 <= n <= 64
WEFT_INLINE int32_t sum_i32(__m512i a) {
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xB1)));
}

// f(a, b, sum) for every 64 bytes; zeros at the end add nothing.
template <class F>
WEFT_INLINE int32_t over_bytes(const uint8_t* a, const uint8_t* b, int64_t n, F f) {
  __m512i even = _mm512_setzero_si512(), odd = even;
  int64_t i = 0;
  for (; i + 128 <= n; i += 128) {
    even = f(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i), even);
    odd = f(_mm512_loadu_si512(a + i + 64), _mm512_loadu_si512(b + i + 64), odd);
  }
  if (i + 64 <= n) even = f(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i), even), i += 64;
  if (i < n) {
    const __mmask64 rest = first64(n - i);
    odd = f(_mm512_maskz_loadu_epi8(rest, a + i), _mm512_maskz_loadu_epi8(rest, b + i), odd);
  }
  return sum_i32(_mm512_add_epi32(even, odd));
}

// The instruction multiplies unsigned by signed bytes: a + 128 is unsigned, and 128 times the sum of b is too much.
WEFT_INLINE int32_t dot_excess(const uint8_t* b, int64_t n) {
  const __m512i flip = _mm512_set1_epi8(-128);
  return over_bytes(b, b, n, [=](__m512i, __m512i y, __m512i s) WEFT_LAMBDA { return _mm512_dpbusd_epi32(s, flip, y); });
}
WEFT_INLINE int32_t dot_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m512i flip = _mm512_set1_epi8(-128);
  return over_bytes(a, b, n, [=](__m512i x, __m512i y, __m512i s) WEFT_LAMBDA {
    return _mm512_dpbusd_epi32(s, _mm512_xor_si512(x, flip), y);
  });
}

// 128 more than each, as unsigned bytes; the instruction leaves its sums in the low 16 bits of 64.
WEFT_INLINE int32_t apart_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m512i flip = _mm512_set1_epi8(-128);
  return over_bytes(a, b, n, [=](__m512i x, __m512i y, __m512i s) WEFT_LAMBDA {
    return _mm512_add_epi32(s, _mm512_sad_epu8(_mm512_xor_si512(x, flip), _mm512_xor_si512(y, flip)));
  });
}

WEFT_INLINE int32_t dot_nibbles(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m512i mask = _mm512_set1_epi8(15);
  return over_bytes(a, b, n, [=](__m512i x, __m512i y, __m512i s) WEFT_LAMBDA {
    const auto high = [&](__m512i v) WEFT_LAMBDA { return _mm512_and_si512(_mm512_srli_epi16(v, 4), mask); };
    s = _mm512_dpbusd_epi32(s, _mm512_and_si512(x, mask), _mm512_and_si512(y, mask));
    return _mm512_dpbusd_epi32(s, high(x), high(y));
  });
}

WEFT_INLINE int32_t differing_bits(const uint8_t* a, const uint8_t* b, int64_t n) {
  const __m512i mask = _mm512_set1_epi8(15);
  const __m512i count = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  return over_bytes(a, b, n, [=](__m512i x, __m512i y, __m512i s) WEFT_LAMBDA {
    const __m512i v = _mm512_xor_si512(x, y);
    const __m512i low = _mm512_shuffle_epi8(count, _mm512_and_si512(v, mask));
    const __m512i high = _mm512_shuffle_epi8(count, _mm512_and_si512(_mm512_srli_epi16(v, 4), mask));
    return _mm512_add_epi32(s, _mm512_sad_epu8(_mm512_add_epi8(low, high), _mm512_setzero_si512()));
  });
}

// Written out: a function of the plain level cannot hold this instruction, not even inlined.
WEFT_POPCNT static inline int32_t counted_bits(const uint8_t* a, const uint8_t* b, int64_t n) {
  __m512i even = _mm512_setzero_si512(), odd = even;
  int64_t i = 0;
  for (; i + 128 <= n; i += 128) {
    even = _mm512_add_epi64(even, _mm512_popcnt_epi64(_mm512_xor_si512(_mm512_loadu_si512(a + i), _mm512_loadu_si512(b + i))));
    odd = _mm512_add_epi64(odd, _mm512_popcnt_epi64(_mm512_xor_si512(_mm512_loadu_si512(a + i + 64), _mm512_loadu_si512(b + i + 64))));
  }
  for (; i < n; i += 64) {
    const __mmask64 rest = first64(n - i < 64 ? n - i : 64);
    const __m512i v = _mm512_xor_si512(_mm512_maskz_loadu_epi8(rest, a + i), _mm512_maskz_loadu_epi8(rest, b + i));
    even = _mm512_add_epi64(even, _mm512_popcnt_epi64(v));
  }
  return sum_i32(_mm512_add_epi64(even, odd));  // the upper halves are zero
}

}  // namespace weft::ISA
