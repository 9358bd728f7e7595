// half: exact conversions between float32 and the two 16-bit floats, in integer arithmetic.
//
// Widening is exact, subnormals, infinities and NaNs included (a NaN is made quiet and keeps its payload, as the x86
// and Arm instructions do). Narrowing rounds to nearest, ties to even; overflow gives infinity; a NaN stays a NaN.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/kernel.h"

namespace weft {

// std::bit_cast is a weak symbol wherever it is not inlined; kernels of every level include this header.
template <class To, class From>
WEFT_INLINE To bit_cast(From from) {
  To to;
  static_assert(sizeof(to) == sizeof(from));
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// Half: 1 sign, 5 exponent (bias 15), 10 mantissa bits. Float: 1, 8 (bias 127), 23.
WEFT_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // infinity or NaN
    const uint32_t quiet = magnitude > 0x7C00u ? 0x00400000u : 0;
    return bit_cast<float>(sign | 0x7F800000u | quiet | ((magnitude & 0x03FFu) << 13));
  }
  if (magnitude >= 0x0400u)  // normal: move the exponent's bias from 15 to 127
    return bit_cast<float>(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
  // Zero or subnormal: mantissa * 2^-24. Both factors are exact in float32, and so is the product.
  const float value = static_cast<float>(magnitude) * 0x1p-24f;
  return bit_cast<float>(sign | bit_cast<uint32_t>(value));
}

WEFT_INLINE uint16_t float_to_half(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)  // NaN: quiet, with the payload's top bits
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x03FFu));
  if (magnitude >= 0x477FF000u)  // 65520 and above rounds past the largest half, 65504
    return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal
    // Adding 0.5 puts the half's last subnormal bit (2^-24) at float32's last, so the addition rounds to nearest even.
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t rounded = magnitude - ((127u - 15u) << 23) + 0x0FFFu + odd;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

WEFT_INLINE float bf16_to_float(uint16_t bits) { return bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

WEFT_INLINE uint16_t float_to_bf16(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x0040u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// The same, with subnormal numbers as zeros: how the matrix unit reads them.
WEFT_INLINE uint16_t float_to_bf16_normal(float value) {
  const uint16_t bits = float_to_bf16(value);
  return bit_cast<uint32_t>(value) & 0x7F800000u ? bits : static_cast<uint16_t>(bits & 0x8000u);
}

}  // namespace weft
