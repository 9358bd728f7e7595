// spread: one overload per quantised block, from the file's bit layout to plain fields. Inline: where the type is known,
// packing works on whole vectors of codes.
//
// An overload writes all fields that its format has, and leaves the others alone.
#pragma once
#include <cstdint>
#include <cstring>

#include "pack/plain.h"
#include "quant/dequant.h"
#include "quant/iq_grids.inc"

namespace weft {

// 32 codes of four bits: element i in the low nibble of byte i, element i + 16 in the high one.
inline void spread_nibbles(const uint8_t* qs, uint8_t* code) {
  for (int i = 0; i < 16; ++i) {
    code[i] = qs[i] & 15;
    code[i + 16] = qs[i] >> 4;
  }
}

inline void spread_fifth_bits(const uint8_t* qh, uint8_t* code) {
  for (int i = 0; i < 32; ++i) code[i] |= static_cast<uint8_t>((qh[i >> 3] >> (i & 7) & 1) << 4);
}

inline uint8_t two_bits(const uint8_t* qs, int i) { return qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3; }

inline void spread_block(const BlockQ4_0& block, Plain& plain) {
  plain.d = block.d;
  spread_nibbles(block.qs, plain.code);
}

inline void spread_block(const BlockQ4_1& block, Plain& plain) {
  plain.d = block.d, plain.m = block.m;
  spread_nibbles(block.qs, plain.code);
}

inline void spread_block(const BlockQ4Z& block, Plain& plain) {
  plain.d = block.d, plain.m = block.z;
  spread_nibbles(block.qs, plain.code);
}

inline void spread_block(const BlockQ5_0& block, Plain& plain) {
  plain.d = block.d;
  spread_nibbles(block.qs, plain.code);
  spread_fifth_bits(block.qh, plain.code);
}

inline void spread_block(const BlockQ5_1& block, Plain& plain) {
  plain.d = block.d, plain.m = block.m;
  spread_nibbles(block.qs, plain.code);
  spread_fifth_bits(block.qh, plain.code);
}

inline void spread_block(const BlockQ8_0& block, Plain& plain) {
  plain.d = block.d;
  for (int i = 0; i < 32; ++i) plain.code[i] = static_cast<uint8_t>(block.qs[i] + 128);
}

inline void spread_block(const BlockIQ4NL& block, Plain& plain) {
  plain.d = block.d;
  spread_nibbles(block.qs, plain.code);
}

inline void spread_block(const BlockMXFP4& block, Plain& plain) {
  plain.d = static_cast<uint16_t>(half_power_bits(block.e) >> 16);
  spread_nibbles(block.qs, plain.code);
}

inline void spread_block(const BlockQ2K& block, Plain& plain) {
  plain.d = block.d, plain.m = block.dmin;
  for (int j = 0; j < 16; ++j) {
    plain.scale[j] = block.scales[j] & 15;
    plain.min[j] = block.scales[j] >> 4;
  }
  for (int i = 0; i < 256; ++i) plain.code[i] = two_bits(block.qs, i);
}

inline void spread_block(const BlockQ3K& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 16; ++j) {
    const int low = block.scales[j % 8] >> (j / 8 * 4) & 15, high = block.scales[8 + j % 4] >> (j / 4 * 2) & 3;
    plain.scale[j] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  for (int i = 0; i < 256; ++i)
    plain.code[i] = static_cast<uint8_t>(two_bits(block.qs, i) | (block.hmask[i % 32] >> (i / 32) & 1) << 2);
}

template <class Block>
inline void spread_k4(const Block& block, Plain& plain) {
  plain.d = block.d, plain.m = block.dmin;
  for (int j = 0; j < 8; ++j) {
    const ScaleMin sm = scale_min(block.scales, j);
    plain.scale[j] = sm.scale, plain.min[j] = sm.min;
    for (int i = 0; i < 32; ++i) plain.code[j * 32 + i] = block.qs[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
  }
}

inline void spread_block(const BlockQ4K& block, Plain& plain) { spread_k4(block, plain); }

inline void spread_block(const BlockQ5K& block, Plain& plain) {
  spread_k4(block, plain);
  for (int i = 0; i < 256; ++i) plain.code[i] |= static_cast<uint8_t>((block.qh[i % 32] >> (i / 32) & 1) << 4);
}

inline void spread_block(const BlockQ6K& block, Plain& plain) {
  plain.d = block.d;
  std::memcpy(plain.scale, block.scales, 16);
  for (int i = 0; i < 256; ++i) {
    const int low = block.ql[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
    plain.code[i] = static_cast<uint8_t>(low | two_bits(block.qh, i) << 4);
  }
}

inline void spread_block(const BlockIQ4XS& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) {
    const int low = block.scales_l[j / 2] >> (j % 2 * 4) & 15, high = block.scales_h >> (j * 2) & 3;
    plain.scale[j] = static_cast<uint8_t>((low | high << 4) - 32);
    spread_nibbles(block.qs + j * 16, plain.code + j * 32);
  }
}

// Eight elements of iq2 or iq1: 2-bit levels of a grid's entry, and the third bit of each code.
inline void spread_eight(uint16_t entry, uint32_t third, uint8_t* code) {
  for (int i = 0; i < 8; ++i) code[i] = static_cast<uint8_t>((entry >> (2 * i) & 3) | (third >> i & 1) << 2);
}
// Four of iq3: 3-bit levels, signs above them.
inline void spread_four(uint16_t entry, uint32_t signs, uint8_t* code) {
  for (int i = 0; i < 4; ++i) code[i] = static_cast<uint8_t>((entry >> (4 * i) & 7) | (signs >> i & 1) << 3);
}
inline uint8_t odd_scale(int stored) { return static_cast<uint8_t>(2 * stored + 1); }
inline int nibble(const uint8_t* bytes, int i) { return bytes[i / 2] >> (i % 2 * 4) & 15; }

inline void spread_block(const BlockIQ2XXS& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) {
    const uint32_t entries = word_of(block.qs + j * 4), rest = word_of(block.qs + j * 4 + 2);
    plain.scale[j] = odd_scale(static_cast<int>(rest >> 28));
    for (int k = 0; k < 4; ++k)
      spread_eight(kGridIQ2XXS[entries >> (8 * k) & 255], with_parity(rest >> (7 * k) & 127), plain.code + j * 32 + k * 8);
  }
}

inline void spread_block(const BlockIQ2XS& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 16; ++j) plain.scale[j] = odd_scale(nibble(block.scales, j));
  for (int k = 0; k < 32; ++k)
    spread_eight(kGridIQ2XS[block.qs[k] & 511], with_parity(block.qs[k] >> 9), plain.code + k * 8);
}

inline void spread_block(const BlockIQ2S& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 16; ++j) plain.scale[j] = odd_scale(nibble(block.scales, j));
  for (int k = 0; k < 32; ++k)
    spread_eight(kGridIQ2S[block.qs[k] | (block.qh[k / 4] >> (k % 4 * 2) & 3) << 8], block.signs[k], plain.code + k * 8);
}

inline void spread_block(const BlockIQ3XXS& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) {
    const uint32_t rest = word_of(block.signs + j * 2);
    plain.scale[j] = odd_scale(static_cast<int>(rest >> 28));
    for (int k = 0; k < 8; ++k)
      spread_four(kGridIQ3XXS[block.qs[j * 8 + k]], with_parity(rest >> (k / 2 * 7) & 127) >> (k % 2 * 4),
                  plain.code + j * 32 + k * 4);
  }
}

inline void spread_block(const BlockIQ3S& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) plain.scale[j] = odd_scale(nibble(block.scales, j));
  for (int k = 0; k < 64; ++k)
    spread_four(kGridIQ3S[block.qs[k] | (block.qh[k / 8] >> (k % 8) & 1) << 8],
                static_cast<uint32_t>(block.signs[k / 2] >> (k % 2 * 4)), plain.code + k * 4);
}

inline void spread_block(const BlockIQ1S& block, Plain& plain) {
  plain.d = block.d;
  for (int k = 0; k < 32; ++k) {
    const int qh = block.qh[k / 4];
    plain.scale[k / 4] = odd_scale(qh >> 12 & 7);
    spread_eight(kGridIQ1[block.qs[k] | (qh >> (k % 4 * 3) & 7) << 8], qh & 0x8000 ? 255 : 0, plain.code + k * 8);
  }
}

inline void spread_block(const BlockIQ1M& block, Plain& plain) {
  plain.d = 0;
  for (int i = 0; i < 4; ++i) plain.d = static_cast<uint16_t>(plain.d | block.scales[i] >> 12 << (4 * i));
  for (int j = 0; j < 16; ++j) plain.scale[j] = odd_scale(block.scales[j / 4] >> (j % 4 * 3) & 7);
  for (int k = 0; k < 32; ++k) {
    const int high = nibble(block.qh, k);
    spread_eight(kGridIQ1[block.qs[k] | (high & 7) << 8], high & 8 ? 255 : 0, plain.code + k * 8);
  }
}

// Digits of three: those of a byte are the wholes of its fraction times 3, 9, …
inline uint8_t ternary(uint8_t byte, int digit) {
  constexpr uint8_t powers[5] = {1, 3, 9, 27, 81};
  return static_cast<uint8_t>(static_cast<uint8_t>(byte * powers[digit]) * 3 >> 8);
}

inline void spread_block(const BlockTQ1_0& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) plain.scale[j] = 1;
  for (int i = 0; i < 160; ++i) plain.code[i] = ternary(block.qs[i % 32], i / 32);
  for (int i = 0; i < 80; ++i) plain.code[160 + i] = ternary(block.qs[32 + i % 16], i / 16);
  for (int i = 0; i < 16; ++i) plain.code[240 + i] = ternary(block.qh[i % 4], i / 4);
}

inline void spread_block(const BlockTQ2_0& block, Plain& plain) {
  plain.d = block.d;
  for (int j = 0; j < 8; ++j) plain.scale[j] = 1;
  for (int i = 0; i < 256; ++i) plain.code[i] = two_bits(block.qs, i);
}

// The block of each packed type.
template <DType type>
struct BlockOf;
#define WEFT_BLOCK(type, block) \
  template <>                   \
  struct BlockOf<DType::type> { \
    using Block = block;        \
  };
WEFT_BLOCK(q4_0, BlockQ4_0)
WEFT_BLOCK(q4_1, BlockQ4_1)
WEFT_BLOCK(q4_z, BlockQ4Z)
WEFT_BLOCK(q5_0, BlockQ5_0)
WEFT_BLOCK(q5_1, BlockQ5_1)
WEFT_BLOCK(q8_0, BlockQ8_0)
WEFT_BLOCK(iq4_nl, BlockIQ4NL)
WEFT_BLOCK(mxfp4, BlockMXFP4)
WEFT_BLOCK(q2_k, BlockQ2K)
WEFT_BLOCK(q3_k, BlockQ3K)
WEFT_BLOCK(q4_k, BlockQ4K)
WEFT_BLOCK(q5_k, BlockQ5K)
WEFT_BLOCK(q6_k, BlockQ6K)
WEFT_BLOCK(iq4_xs, BlockIQ4XS)
WEFT_BLOCK(iq3_s, BlockIQ3S)
WEFT_BLOCK(iq3_xxs, BlockIQ3XXS)
WEFT_BLOCK(iq2_s, BlockIQ2S)
WEFT_BLOCK(iq2_xs, BlockIQ2XS)
WEFT_BLOCK(iq2_xxs, BlockIQ2XXS)
WEFT_BLOCK(iq1_m, BlockIQ1M)
WEFT_BLOCK(iq1_s, BlockIQ1S)
WEFT_BLOCK(tq1_0, BlockTQ1_0)
WEFT_BLOCK(tq2_0, BlockTQ2_0)
#undef WEFT_BLOCK

// One block at any address, read in place: a copy would cost more than the rest, because its vectors are read before the
// stores have finished.
template <DType type>
void spread_bytes(const std::byte* bytes, Plain& plain) {
  using Block = typename BlockOf<type>::Block;
  if (reinterpret_cast<uintptr_t>(bytes) % alignof(Block) == 0)
    return spread_block(*reinterpret_cast<const Block*>(bytes), plain);
  Block block;
  std::memcpy(&block, bytes, sizeof block);
  spread_block(block, plain);
}

}  // namespace weft
