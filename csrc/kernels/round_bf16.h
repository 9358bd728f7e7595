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

}  // namespace weft::ISA
