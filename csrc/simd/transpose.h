// transpose: 16 x 16 units of 32 bits, in registers; for the levels that have AVX-512.
#pragma once
#include "simd/simd.h"

namespace weft::ISA {

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

}  // namespace weft::ISA
