// widen: 16 elements of a float type as float32.
#pragma once
#include "simd/simd.h"

namespace weft::ISA {

struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};
WEFT_INLINE f32x16 widen(const float* p) { return load(p); }
WEFT_INLINE f32x16 widen(const F16* p) { return load_f16(&p->bits); }
WEFT_INLINE f32x16 widen(const Bf16* p) { return load_bf16(&p->bits); }

}  // namespace weft::ISA
