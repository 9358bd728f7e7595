// half: float16 and bfloat16 conversions, exact and rounded to nearest even; subnormals, infinities and NaN included.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/kernel.h"

namespace weft {

WEFT_INLINE float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
WEFT_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

WEFT_INLINE float half_to_float(uint16_t h) {
  uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) {  // infinity, or NaN made quiet as the instructions do
    uint32_t quiet = mantissa ? 0x00400000u : 0u;
    return float_from_bits(sign | 0x7F800000u | quiet | (mantissa << 13));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    float magnitude = static_cast<float>(mantissa) * 5.9604644775390625e-08f;
    return float_from_bits(bits_of(magnitude) | sign);
  }
  return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

WEFT_INLINE uint16_t float_to_half(float value) {
  uint32_t bits = bits_of(value);
  uint32_t sign = (bits >> 16) & 0x8000u, rest = bits & 0x7FFFFFFFu;
  if (rest > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u | ((rest >> 13) & 0x3FFu));  // NaN, quiet
  if (rest >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);                          // rounds to inf
  if (rest < 0x38800000u) {  // subnormal half: adding 0.5 lines the mantissa up and rounds to nearest even
    float shifted = float_from_bits(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_of(shifted) - 0x3F000000u));
  }
  uint32_t rounded = rest + 0xFFFu + ((rest >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

WEFT_INLINE float bf16_to_float(uint16_t b) { return float_from_bits(static_cast<uint32_t>(b) << 16); }

WEFT_INLINE uint16_t float_to_bf16(float value) {
  uint32_t bits = bits_of(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace weft
