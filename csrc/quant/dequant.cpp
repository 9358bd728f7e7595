// dequant: the block types whose elements are a scale times an integer (plus a minimum), and the dispatch over types.
#include "quant/dequant.h"

#include <bit>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"

namespace weft {

void decode(const BlockQ4_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block.qs[i] & 15) - 8);
    out[i + 16] = d * static_cast<float>((block.qs[i] >> 4) - 8);
  }
}

void decode(const BlockQ4_1& block, float* out) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block.qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block.qs[i] >> 4) + m;
  }
}

void decode(const BlockQ4Z& block, float* out) {
  const float d = half_to_float(block.d), m = 0.0f - d * half_to_float(block.z);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(block.qs[i] & 15) + m;
    out[i + 16] = d * static_cast<float>(block.qs[i] >> 4) + m;
  }
}

// Bit `i` of a little-endian row of bits.
static int bit(const uint8_t* bits, int i) { return bits[i >> 3] >> (i & 7) & 1; }

void decode(const BlockQ5_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(((block.qs[i] & 15) | bit(block.qh, i) << 4) - 16);
    out[i + 16] = d * static_cast<float>(((block.qs[i] >> 4) | bit(block.qh, i + 16) << 4) - 16);
  }
}

void decode(const BlockQ5_1& block, float* out) {
  const float d = half_to_float(block.d), m = half_to_float(block.m);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block.qs[i] & 15) | bit(block.qh, i) << 4) + m;
    out[i + 16] = d * static_cast<float>((block.qs[i] >> 4) | bit(block.qh, i + 16) << 4) + m;
  }
}

void decode(const BlockQ8_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(block.qs[i]) * d;
}

// Q2_K, Q3_K, Q6_K and TQ2_0 keep two bits of each element in planes: a half block is 32 bytes, and plane p of it, the
// bits 2p and 2p + 1 of each byte, is 32 elements. A group of 16 elements is half a plane.
struct TwoBits {
  const uint8_t* bytes;
  int shift;
  TwoBits(const uint8_t* planes, int group)
      : bytes(planes + group / 8 * 32 + group % 2 * 16), shift(group / 2 % 4 * 2) {}
  int operator[](int i) const { return bytes[i] >> shift & 3; }
};

void decode(const BlockQ2K& block, float* out) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (int group = 0; group < 16; ++group, out += 16) {
    const float scale = d * static_cast<float>(block.scales[group] & 15);
    const float min = dmin * static_cast<float>(block.scales[group] >> 4);
    const TwoBits q(block.qs, group);
    for (int i = 0; i < 16; ++i) out[i] = scale * static_cast<float>(q[i]) - min;
  }
}

void decode(const BlockQ3K& block, float* out) {
  const float d = half_to_float(block.d);
  for (int group = 0; group < 16; ++group, out += 16) {
    // Low four bits: two a byte in bytes 0..7; high two bits: four a byte in bytes 8..11.
    const int low = block.scales[group % 8] >> (group / 8 * 4) & 15;
    const int high = block.scales[8 + group % 4] >> (group / 4 * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const TwoBits q(block.qs, group);
    const uint8_t* third = block.hmask + group % 2 * 16;  // bit group / 2; set: no offset
    for (int i = 0; i < 16; ++i) out[i] = scale * static_cast<float>(q[i] + 4 * (third[i] >> (group / 2) & 1) - 4);
  }
}

void decode(const BlockQ4K& block, float* out) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (int group = 0; group < 8; ++group) {
    const ScaleMin sm = scale_min(block.scales, group);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    const uint8_t* qs = block.qs + group / 2 * 32;
    for (int i = 0; i < 32; ++i) out[group * 32 + i] = scale * static_cast<float>(qs[i] >> (group % 2 * 4) & 15) - min;
  }
}

void decode(const BlockQ5K& block, float* out) {
  const float d = half_to_float(block.d), dmin = half_to_float(block.dmin);
  for (int group = 0; group < 8; ++group) {
    const ScaleMin sm = scale_min(block.scales, group);
    const float scale = d * static_cast<float>(sm.scale), min = dmin * static_cast<float>(sm.min);
    const uint8_t* qs = block.qs + group / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      const int q = (qs[i] >> (group % 2 * 4) & 15) | (block.qh[i] >> group & 1) << 4;
      out[group * 32 + i] = scale * static_cast<float>(q) - min;
    }
  }
}

void decode(const BlockQ6K& block, float* out) {
  const float d = half_to_float(block.d);
  for (int group = 0; group < 16; ++group, out += 16) {
    const float scale = d * static_cast<float>(block.scales[group]);
    const uint8_t* low = block.ql + group / 8 * 64 + group % 4 * 16;
    const TwoBits high(block.qh, group);
    for (int i = 0; i < 16; ++i)
      out[i] = scale * static_cast<float>(((low[i] >> (group / 4 % 2 * 4) & 15) | high[i] << 4) - 32);
  }
}

// A ternary byte holds ceil(n * 256 / 243) for the base-3 number n: times 3^k modulo 256 brings digit k on top.
static int ternary(uint8_t byte, uint8_t power) { return (static_cast<uint8_t>(byte * power) * 3 >> 8) - 1; }

void decode(const BlockTQ1_0& block, float* out) {
  static constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  const float d = half_to_float(block.d);
  for (int k = 0; k < 5; ++k) {
    for (int i = 0; i < 32; ++i) out[k * 32 + i] = d * static_cast<float>(ternary(block.qs[i], kPowers[k]));
    for (int i = 0; i < 16; ++i) out[160 + k * 16 + i] = d * static_cast<float>(ternary(block.qs[32 + i], kPowers[k]));
  }
  for (int k = 0; k < 4; ++k)
    for (int i = 0; i < 4; ++i) out[240 + k * 4 + i] = d * static_cast<float>(ternary(block.qh[i], kPowers[k]));
}

void decode(const BlockTQ2_0& block, float* out) {
  const float d = half_to_float(block.d);
  for (int group = 0; group < 16; ++group, out += 16) {
    const TwoBits q(block.qs, group);
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(q[i] - 1);
  }
}

void decode(const BlockMXFP4& block, float* out) {
  const float d = std::bit_cast<float>(half_power_bits(block.e));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kLevelsFP4[block.qs[i] & 15]);
    out[i + 16] = d * static_cast<float>(kLevelsFP4[block.qs[i] >> 4]);
  }
}

void decode(const BlockIQ4NL& block, float* out) {
  const float d = half_to_float(block.d);
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>(kLevelsIQ4[block.qs[i] & 15]);
    out[i + 16] = d * static_cast<float>(kLevelsIQ4[block.qs[i] >> 4]);
  }
}

void decode(const BlockIQ4XS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int group = 0; group < 8; ++group, out += 32) {
    const int low = block.scales_l[group / 2] >> (group % 2 * 4) & 15;
    const int high = block.scales_h >> (group * 2) & 3;
    const float scale = d * static_cast<float>((low | high << 4) - 32);
    const uint8_t* qs = block.qs + group * 16;
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(kLevelsIQ4[qs[i] & 15]);
      out[i + 16] = scale * static_cast<float>(kLevelsIQ4[qs[i] >> 4]);
    }
  }
}

template <class Block>
static void decode_span(const std::byte* blocks, float* out, size_t count) {
  Block block;
  for (size_t i = 0; i < count; i += Block::kCount, blocks += sizeof block) {
    std::memcpy(&block, blocks, sizeof block);  // the source may be at an odd address
    decode(block, out + i);
  }
}

template <float (*widen)(uint16_t)>
static void widen_span(const std::byte* values, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, values + i * 2, 2);
    out[i] = widen(bits);
  }
}

void dequantise(DType dtype, const std::byte* blocks, float* out, size_t count) {
  if (count % static_cast<size_t>(info(dtype).block))
    fail(ErrorKind::input, "dequantise", "not a whole number of blocks: " + std::to_string(count) + " elements of " +
                               std::string(info(dtype).name));
  switch (dtype) {
    case DType::f32: std::memcpy(out, blocks, count * sizeof(float)); return;
    case DType::f16: return widen_span<half_to_float>(blocks, out, count);
    case DType::bf16: return widen_span<bf16_to_float>(blocks, out, count);
    case DType::q4_0: return decode_span<BlockQ4_0>(blocks, out, count);
    case DType::q4_1: return decode_span<BlockQ4_1>(blocks, out, count);
    case DType::q5_0: return decode_span<BlockQ5_0>(blocks, out, count);
    case DType::q8_0: return decode_span<BlockQ8_0>(blocks, out, count);
    case DType::q4_k: return decode_span<BlockQ4K>(blocks, out, count);
    case DType::q6_k: return decode_span<BlockQ6K>(blocks, out, count);
#if !defined(WEFT_FEW_TYPES)  // tools/build_wasm.py
    case DType::q5_1: return decode_span<BlockQ5_1>(blocks, out, count);
    case DType::q2_k: return decode_span<BlockQ2K>(blocks, out, count);
    case DType::q3_k: return decode_span<BlockQ3K>(blocks, out, count);
    case DType::q5_k: return decode_span<BlockQ5K>(blocks, out, count);
    case DType::iq2_xxs: return decode_span<BlockIQ2XXS>(blocks, out, count);
    case DType::iq2_xs: return decode_span<BlockIQ2XS>(blocks, out, count);
    case DType::iq2_s: return decode_span<BlockIQ2S>(blocks, out, count);
    case DType::iq3_xxs: return decode_span<BlockIQ3XXS>(blocks, out, count);
    case DType::iq3_s: return decode_span<BlockIQ3S>(blocks, out, count);
    case DType::iq1_s: return decode_span<BlockIQ1S>(blocks, out, count);
    case DType::iq1_m: return decode_span<BlockIQ1M>(blocks, out, count);
    case DType::iq4_nl: return decode_span<BlockIQ4NL>(blocks, out, count);
    case DType::iq4_xs: return decode_span<BlockIQ4XS>(blocks, out, count);
    case DType::tq1_0: return decode_span<BlockTQ1_0>(blocks, out, count);
    case DType::tq2_0: return decode_span<BlockTQ2_0>(blocks, out, count);
    case DType::mxfp4: return decode_span<BlockMXFP4>(blocks, out, count);
    case DType::q4_z: return decode_span<BlockQ4Z>(blocks, out, count);
#endif
    default: fail(ErrorKind::unsupported, "dequantise", "not a weight type: " + std::string(info(dtype).name));
  }
}

}  // namespace weft
