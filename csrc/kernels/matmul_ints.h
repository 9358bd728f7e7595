// matmul_ints: the integer vectors of the quantised products, beside the floats of simd.h. 16 lanes at every level:
//
//   i32x16   one integer per lane        zero_i splat_i + * to_float
//   u8x64    four bytes per lane         load_bytes | bits<at, count, to> (a bit field, moved) look_up byte_of<i>
//   pairs    two int16 per lane          load_pairs (from bytes) low_nibbles high_nibbles even odd (widened halves)
//   dot      sums of codes times activations, four to a lane; dot_pairs: acc + pairs . two int16
//   dot_rows the same for a few rows of activations at once
//   store_i8 16 floats in [-127, 127], rounded to nearest even, to bytes; returns their sum
// Everything is exact, so the levels agree to the bit whatever the order of their additions.
#pragma once
#include "core/half.h"
#include "simd/simd.h"

namespace weft::ISA {

// Activation bytes are broadcast four at a time, their sums two at a time.
WEFT_INLINE int32_t four_bytes(const void* p) {
  int32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

}  // namespace weft::ISA

#if defined(WEFT_ISA_avx512)
#include "kernels/matmul_ints_avx512.h"
#elif defined(WEFT_ISA_avx2)
#include "kernels/matmul_ints_avx2.h"
#elif defined(WEFT_ISA_neon)
#include "kernels/matmul_ints_neon.h"
#else
#include "kernels/matmul_ints_scalar.h"
#endif

#if !defined(WEFT_ISA_neon) && !defined(WEFT_ISA_avx512)
namespace weft::ISA {

// How many rows of activations `dot_rows` takes at once.
constexpr int kTogether = 1;

// total[r] = dot of row r, which lies at x + r * stride; total holds `start` on entry.
template <int limit, int groups, int rows>
WEFT_INLINE void dot_rows(i32x16* total, const u8x64* codes, const int8_t* x, int64_t) {
  static_assert(rows == 1);
  total[0] = dot<limit, groups>(total[0], codes, x);
}

}  // namespace weft::ISA
#endif
