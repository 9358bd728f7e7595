// dequant: quantised blocks to float32, one block or a span; scalar, the meaning that every faster kernel must match.
//
// The order of the float operations is part of the meaning: results are equal, bit for bit, to those of the format's
// reference implementation in Python.
#pragma once
#include <bit>
#include <cstddef>

#include "core/dtype.h"
#include "quant/blocks.h"

namespace weft {

// One row, or any other whole number of blocks: `count` elements (a multiple of the type's block) from `blocks`, at any
// alignment, to `out`. Takes f32, f16, bf16 and every quantised GGUF type; throws Error(unsupported) for other types
// and Error(input) for a part of a block.
void dequantise(DType dtype, const std::byte* blocks, float* out, size_t count);

// One block; `out` takes Block::kCount floats.
void decode(const BlockQ4_0& block, float* out);
void decode(const BlockQ4_1& block, float* out);
void decode(const BlockQ5_0& block, float* out);
void decode(const BlockQ5_1& block, float* out);
void decode(const BlockQ8_0& block, float* out);
void decode(const BlockQ2K& block, float* out);
void decode(const BlockQ3K& block, float* out);
void decode(const BlockQ4K& block, float* out);
void decode(const BlockQ5K& block, float* out);
void decode(const BlockQ6K& block, float* out);
void decode(const BlockTQ1_0& block, float* out);
void decode(const BlockTQ2_0& block, float* out);
void decode(const BlockMXFP4& block, float* out);
void decode(const BlockQ4Z& block, float* out);
void decode(const BlockIQ4NL& block, float* out);
void decode(const BlockIQ4XS& block, float* out);
void decode(const BlockIQ2XXS& block, float* out);
void decode(const BlockIQ2XS& block, float* out);
void decode(const BlockIQ2S& block, float* out);
void decode(const BlockIQ3XXS& block, float* out);
void decode(const BlockIQ3S& block, float* out);
void decode(const BlockIQ1S& block, float* out);
void decode(const BlockIQ1M& block, float* out);

// The 6-bit scale and minimum of group `group` (0..7, 32 elements each) of a Q4_K or Q5_K block.
struct ScaleMin {
  uint8_t scale, min;
};
inline ScaleMin scale_min(const uint8_t scales[12], int group) {
  if (group < 4) return {static_cast<uint8_t>(scales[group] & 63), static_cast<uint8_t>(scales[group + 4] & 63)};
  const uint8_t low = scales[group + 4];
  return {static_cast<uint8_t>((low & 15) | (scales[group - 4] >> 6 << 4)),
          static_cast<uint8_t>((low >> 4) | (scales[group] >> 6 << 4))};
}

// Seven stored sign bits of an iq type; the eighth makes their number even.
inline uint32_t with_parity(uint32_t seven) { return seven | (static_cast<uint32_t>(std::popcount(seven)) & 1u) << 7; }
inline uint32_t word_of(const uint16_t* halves) { return halves[0] | static_cast<uint32_t>(halves[1]) << 16; }

// The sixteen levels of the non-linear 4-bit types (IQ4_NL, IQ4_XS) and the doubled E2M1 values of MXFP4.
inline constexpr int8_t kLevelsIQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
inline constexpr int8_t kLevelsFP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
// MXFP4's scale, 2^(e - 128), as a float's bits: half of the E8M0 value, because the levels are doubled. The two smallest
// are subnormal.
inline constexpr uint32_t half_power_bits(uint8_t e) {
  return e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
}

}  // namespace weft
