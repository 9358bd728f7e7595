#include "pack/plain.h"

#include <cstring>

#include "core/error.h"
#include "core/half.h"
#include "quant/dequant.h"

namespace weft {

// 32 codes of four bits: element i in the low nibble of byte i, element i + 16 in the high one.
static void spread_nibbles(const uint8_t* qs, uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = qs[i] & 15;
    code[i + 16] = qs[i] >> 4;
  }
}

static void spread_fifth_bits(const uint8_t* qh, uint8_t* code) {
  for (int i = 0; i < 32; ++i) code[i] |= static_cast<uint8_t>((qh[i >> 3] >> (i & 7) & 1) << 4);
}

static uint8_t two_bits(const uint8_t* qs, int i) { return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

static void spread_block(const BlockQ4_0& block, Plain& plain) {
  plain.d = block.d;
  spread_nibbles(block.qs, plain.code);
}

static void spread_block(const BlockQ4_1& block, Plain& plain) {
  plain.d = block.d, plain.m = block.m;
  spread_nibbles(block.qs, plain.code);
}

static void spread_block(const BlockQ5_0& block, Plain& plain) {
  plain.d = block.d;
  spread_nibbles(block.qs, plain.code);
  spread_fifth_bits(block.qh, plain.code);
}

static void spread_block(const BlockQ5_1& block, Plain& plain) {
  plain.d = block.d, plain.m = block.m;
  spread_nibbles(block.qs, plain.code);
  spread_fifth_bits(block.qh, plain.code);
}

static void spread_block(const BlockQ8_0& block, Plain& plain) {
  plain.d = block.d;
  for (int i = 0; i < 32; ++i) plain.code[i] = static_cast<uint8_t>(block.qs[i] + 128);
}

static void spread_block(const BlockIQ4NL& block, Plain& plain) {
  plain.d = block.d;
  spread_nibbles(block.qs, plain.code);
}

static void spread_block(const BlockQ2K& block, Plain& plain) {
  plain.d = block.d, plain.m = block.dmin;
  for (int j = 0; j < 16; ++j) {
    plain.scale[j] = block.scales[j] & 15;
    plain.min[j] = block.scales[j] >> 4;
  }
  for (int i = 0; i < 256; ++i) plain.code[i] = two_bits(block.qs, i);
}

static void spread_block(const BlockQ3K& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 16; ++j) {
    const int low = block.scales[j % 8] >> (j / 8 * 4) & 15, high = block.scales[8 + j % 4] >> (j / 4 * 2) & 3;
    plain.scale[j] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i)
    plain.code[i] = static_cast<uint8_t>(two_bits(block.qs, i) | (block.hmask[i % 32] >> (i / 32) & 1) << 2);
}

template <class Block>
static void spread_k4(const Block& block, Plain& plain) {
  plain.d = block.d, plain.m = block.dmin;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin sm = scale_min(block.scales, j);
    plain.scale[j] = sm.scale, plain.min[j] = sm.min;
    for (int i = 0; i < 32; ++i) plain.code[j * 32 + i] = block.qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
  }
}

static void spread_block(const BlockQ4K& block, Plain& plain) { spread_k4(block, plain); }

static void spread_block(const BlockQ5K& block, Plain& plain) {
  spread_k4(block, plain);
  for (int i = 0; i < 256; ++i) plain.code[i] |= static_cast<uint8_t>((block.qh[i % 32] >> (i / 32) & 1) << 4);
}

static void spread_block(const BlockQ6K& block, Plain& plain) {
  plain.d = block.d;
  std::memcpy(plain.scale, block.scales, 16);
  for (int i = 0; i < 256; ++i) {
    const int low = block.ql[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
    plain.code[i] = static_cast<uint8_t>(low | two_bits(block.qh, i) << 4);
  }
}

static void spread_block(const BlockIQ4XS& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) {
    const int low = block.scales_l[j / 2] >> (j % 2 * 4) & 15, high = block.scales_h >> (j * 2) & 3;
    plain.scale[j] = static_cast<uint8_t>((low | high << 4) - 32);
    spread_nibbles(block.qs + j * 16, plain.code + j * 32);
  }
}

template <class Block>
static void spread_bytes(const std::byte* bytes, Plain& plain) {
  Block block;
  std::memcpy(&block, bytes, sizeof block);  // the source may be at an odd address
  spread_block(block, plain);
}

void spread(DType dtype, const std::byte* block, Plain& plain) {
  switch (dtype) {
    case DType::q4_0: return spread_bytes<BlockQ4_0>(block, plain);
    case DType::q4_1: return spread_bytes<BlockQ4_1>(block, plain);
    case DType::q5_0: return spread_bytes<BlockQ5_0>(block, plain);
    case DType::q5_1: return spread_bytes<BlockQ5_1>(block, plain);
    case DType::q8_0: return spread_bytes<BlockQ8_0>(block, plain);
    case DType::iq4_nl: return spread_bytes<BlockIQ4NL>(block, plain);
    case DType::q2_k: return spread_bytes<BlockQ2K>(block, plain);
    case DType::q3_k: return spread_bytes<BlockQ3K>(block, plain);
    case DType::q4_k: return spread_bytes<BlockQ4K>(block, plain);
    case DType::q5_k: return spread_bytes<BlockQ5K>(block, plain);
    case DType::q6_k: return spread_bytes<BlockQ6K>(block, plain);
    case DType::iq4_xs: return spread_bytes<BlockIQ4XS>(block, plain);
    default: fail(ErrorKind::unsupported, "[pack] not a packed type: " + std::string(info(dtype).name));
  }
}

void values(const Format& format, const Plain& plain, float* out) {
  const float d = half_to_float(plain.d), m = half_to_float(plain.m);
  const int subs = format.subs ? format.subs : 1, width = format.block / subs;
  for (int j = 0; j < subs; ++j) {
    const int integer = format.signed_subs ? static_cast<int8_t>(plain.scale[j]) : plain.scale[j];
    const float scale = format.subs ? d * static_cast<float>(integer) : d;
    const float min = format.subs ? m * static_cast<float>(plain.min[j]) : m;
    for (int i = j * width; i < (j + 1) * width; ++i) {
      const int code = format.levels ? kLevelsIQ4[plain.code[i]] : plain.code[i] - format.offset;
      const float value = scale * static_cast<float>(code);
      out[i] = !format.mins ? value : format.subs ? value - min : value + min;
    }
  }
}

}  // namespace weft
