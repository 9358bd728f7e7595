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

// Up to 16 as the sum of two each: the second is what rounding left of the first.
WEFT_INLINE void store_split(uint16_t* high, uint16_t* low, f32x16 x, int64_t count) {
  alignas(64) uint16_t first[16];
  store_rounded(first, x);
  store_rounded_n(high, x, count);
  store_rounded_n(low, x - load_bf16(first), count);
}

}  // namespace weft::ISA
