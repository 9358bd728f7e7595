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
#else
WEFT_INLINE void store_rounded(uint16_t* to, f32x16 x) {
  alignas(64) float lane[16];
  store(lane, x);
  for (int i = 0; i < 16; ++i) to[i] = float_to_bf16_normal(lane[i]);
}
#endif

// Up to 16 of them as the sum of two, and the second is what the first left.
WEFT_INLINE void store_split(uint16_t* high, uint16_t* low, f32x16 x, int64_t count) {
  alignas(64) uint16_t first[16], second[16];
  store_rounded(first, x);
  store_rounded(second, x - load_bf16(first));
  for (int64_t i = 0; i < count && i < 16; ++i) high[i] = first[i], low[i] = second[i];
}

}  // namespace weft::ISA
