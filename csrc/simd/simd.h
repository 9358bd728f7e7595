// simd: the vector layer. A vector is 16 floats at every level (one register, two, four, or an array), so that every kernel
// has the same reduction tree everywhere: levels with a fused multiply-add agree to the bit.
//
//   zero splat load store load_n store_n      load_n: lanes from n on are zero; store_n: writes n lanes
//   load_f16 store_f16 load_bf16 (and _n)     widen, narrow (nearest even)
//   load_bf16_pairs                           16 pairs, the first and the second of each
//   + - * / fma max min sqrt abs round        fma(a, b, c) = a*b + c, one rounding where the level has it
//   fused                                     fma with one rounding at every level, if need be by the library
//   sum max_lane                              fixed trees: lanes i and i+8, then i and i+4, i+2, i+1
//   exp erf tanh sigmoid activate             polynomials in math.h, the same at every level
#pragma once
#include <cstdint>
#include <cstring>

#include "core/kernel.h"

#define KERNEL(name) void name(const Call& call, const Worker& worker)

#if defined(WEFT_ISA_avx512)
#include "simd/avx512.h"
#elif defined(WEFT_ISA_avx2)
#include "simd/avx2.h"
#elif defined(WEFT_ISA_neon)
#include "simd/neon.h"
#else
#include "simd/scalar.h"
#endif
#include "simd/math.h"

#if defined(WEFT_ISA_avx2) || defined(WEFT_ISA_avx512) || defined(WEFT_ISA_neon)
namespace weft::ISA {
WEFT_INLINE f32x16 fused(f32x16 a, f32x16 b, f32x16 c) { return fma(a, b, c); }
}  // namespace weft::ISA
#endif
