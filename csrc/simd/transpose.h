// transpose: 16 x 16 units of 32 bits in registers, for the levels that have AVX-512; matrices of floats in memory.
#pragma once
#include "simd/simd.h"

namespace weft::ISA {

#if defined(WEFT_ISA_avx512)
// rows[i] lane j <-> rows[j] lane i. Pairs of rows, then of pairs, are interleaved within 128 bits; then the 128-bit
// parts change places.
WEFT_INLINE void transpose(__m512i (&rows)[16]) {
  __m512i a[16], b[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // b[i + n]: lane n of every 128 bits, of rows i to i + 3
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[n], b[n + 4], 0x88), low23 = _mm512_shuffle_i32x4(b[n], b[n + 4], 0xDD);
    const __m512i high01 = _mm512_shuffle_i32x4(b[n + 8], b[n + 12], 0x88);
    const __m512i high23 = _mm512_shuffle_i32x4(b[n + 8], b[n + 12], 0xDD);
    rows[n] = _mm512_shuffle_i32x4(low01, high01, 0x88);
    rows[n + 8] = _mm512_shuffle_i32x4(low01, high01, 0xDD);
    rows[n + 4] = _mm512_shuffle_i32x4(low23, high23, 0x88);
    rows[n + 12] = _mm512_shuffle_i32x4(low23, high23, 0xDD);
  }
}
#endif

// to[c * to_row + r] = from[r * from_row + c], for `rows` rows of `cols` elements
WEFT_INLINE void turn(float* to, int64_t to_row, const float* from, int64_t from_row, int64_t rows, int64_t cols) {
  int64_t r = 0;
#if defined(WEFT_ISA_avx512)
  for (; r + 16 <= rows; r += 16) {
    const float* at = from + r * from_row;
    int64_t c = 0;
    for (; c + 16 <= cols; c += 16) {
      __m512i block[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) block[i] = _mm512_loadu_si512(at + i * from_row + c);
      transpose(block);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + (c + i) * to_row + r, block[i]);
    }
    for (; c < cols; ++c)
      for (int64_t i = 0; i < 16; ++i) to[c * to_row + r + i] = at[i * from_row + c];
  }
#elif defined(WEFT_ISA_neon)
  for (; r + 4 <= rows; r += 4) {  // 4 x 4 at a time: pairs of rows, then of pairs
    const float* at = from + r * from_row;
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
      const float32x4_t a = vld1q_f32(at + c), b = vld1q_f32(at + from_row + c);
      const float32x4_t d = vld1q_f32(at + 2 * from_row + c), e = vld1q_f32(at + 3 * from_row + c);
      const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b)), ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
      const float64x2_t de_even = vreinterpretq_f64_f32(vtrn1q_f32(d, e)), de_odd = vreinterpretq_f64_f32(vtrn2q_f32(d, e));
      float* out = to + c * to_row + r;
      vst1q_f32(out, vreinterpretq_f32_f64(vtrn1q_f64(ab_even, de_even)));
      vst1q_f32(out + to_row, vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, de_odd)));
      vst1q_f32(out + 2 * to_row, vreinterpretq_f32_f64(vtrn2q_f64(ab_even, de_even)));
      vst1q_f32(out + 3 * to_row, vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, de_odd)));
    }
    for (; c < cols; ++c)
      for (int64_t i = 0; i < 4; ++i) to[c * to_row + r + i] = at[i * from_row + c];
  }
#endif
  for (; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) to[c * to_row + r] = from[r * from_row + c];
}

}  // namespace weft::ISA
