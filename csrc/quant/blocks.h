// blocks: the quantised blocks of GGUF, byte for byte as they lie in a file, and weft's own.
//
// Every multi-byte field is little-endian and at most 2-aligned, so a block can be read in place at any even address.
// `d` is a block's scale and `m` (or `dmin`) its minimum, both as half bits; `kCount` is its number of elements.
// How the fields become numbers is written once, in decode() (dequant.cpp, dequant_grid.cpp).
#pragma once
#include <cstdint>

namespace weft {

struct BlockQ4_0 {
  static constexpr int kCount = 32;
  uint16_t d;
  uint8_t qs[16];  // element i in the low nibble of byte i, element i + 16 in the high one
};

struct BlockQ4_1 {
  static constexpr int kCount = 32;
  uint16_t d, m;
  uint8_t qs[16];
};

struct BlockQ5_0 {
  static constexpr int kCount = 32;
  uint16_t d;
  uint8_t qh[4];  // bit i: the fifth bit of element i
  uint8_t qs[16];
};

struct BlockQ5_1 {
  static constexpr int kCount = 32;
  uint16_t d, m;
  uint8_t qh[4];
  uint8_t qs[16];
};

struct BlockQ8_0 {
  static constexpr int kCount = 32;
  uint16_t d;
  int8_t qs[32];
};

struct BlockQ2K {
  static constexpr int kCount = 256;
  uint8_t scales[16];  // per 16 elements: scale in the low nibble, minimum in the high one
  uint8_t qs[64];
  uint16_t d, dmin;
};

struct BlockQ3K {
  static constexpr int kCount = 256;
  uint8_t hmask[32];  // third bits
  uint8_t qs[64];
  uint8_t scales[12];  // sixteen 6-bit scales
  uint16_t d;
};

struct BlockQ4K {
  static constexpr int kCount = 256;
  uint16_t d, dmin;
  uint8_t scales[12];  // eight 6-bit scales and eight 6-bit minima
  uint8_t qs[128];
};

struct BlockQ5K {
  static constexpr int kCount = 256;
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};

struct BlockQ6K {
  static constexpr int kCount = 256;
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};

struct BlockTQ1_0 {
  static constexpr int kCount = 256;
  uint8_t qs[48];  // five ternary digits a byte
  uint8_t qh[4];   // four ternary digits a byte
  uint16_t d;
};

struct BlockTQ2_0 {
  static constexpr int kCount = 256;
  uint8_t qs[64];
  uint16_t d;
};

struct BlockMXFP4 {
  static constexpr int kCount = 32;
  uint8_t e;  // the scale, a power of two (E8M0)
  uint8_t qs[16];
};

// Not of GGUF: the 4-bit codes of AWQ, GPTQ and compressed-tensors, whose zero points are integers. Their product with the
// scale is not always a half, so q4_1's minimum would round it; d * (q - z) is exact in float32.
struct BlockQ4Z {
  static constexpr int kCount = 32;
  uint16_t d, z;  // z is an integer, kept as a half
  uint8_t qs[16];
};

struct BlockIQ4NL {
  static constexpr int kCount = 32;
  uint16_t d;
  uint8_t qs[16];
};

struct BlockIQ4XS {
  static constexpr int kCount = 256;
  uint16_t d, scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};

struct BlockIQ2XXS {
  static constexpr int kCount = 256;
  uint16_t d;
  uint16_t qs[32];  // per 32 elements: four grid bytes, then 4 x 7 sign bits and a 4-bit scale
};

struct BlockIQ2XS {
  static constexpr int kCount = 256;
  uint16_t d;
  uint16_t qs[32];  // per 8 elements: 9 grid bits, 7 sign bits
  uint8_t scales[8];
};

struct BlockIQ2S {
  static constexpr int kCount = 256;
  uint16_t d;
  uint8_t qs[32];
  uint8_t signs[32];
  uint8_t qh[8];
  uint8_t scales[8];
};

struct BlockIQ3XXS {
  static constexpr int kCount = 256;
  uint16_t d;
  uint8_t qs[64];
  uint16_t signs[16];  // per 32 elements, as one 32-bit word: 4 x 7 sign bits and a 4-bit scale
};

struct BlockIQ3S {
  static constexpr int kCount = 256;
  uint16_t d;
  uint8_t qs[64];
  uint8_t qh[8];
  uint8_t signs[32];
  uint8_t scales[4];
};

struct BlockIQ1S {
  static constexpr int kCount = 256;
  uint16_t d;
  uint8_t qs[32];
  uint16_t qh[8];  // per 32 elements: 4 x 3 grid bits, a 3-bit scale, the sign of the shift
};

struct BlockIQ1M {
  static constexpr int kCount = 256;
  uint8_t qs[32];
  uint8_t qh[16];      // per 8 elements: 3 grid bits and the sign of the shift
  uint16_t scales[4];  // 3-bit scales per 16 elements; the four top nibbles together are the half scale
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34);
static_assert(sizeof(BlockQ2K) == 84 && sizeof(BlockQ3K) == 110 && sizeof(BlockQ4K) == 144);
static_assert(sizeof(BlockQ5K) == 176 && sizeof(BlockQ6K) == 210);
static_assert(sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockQ4Z) == 20);
static_assert(sizeof(BlockIQ4NL) == 18 && sizeof(BlockIQ4XS) == 136);
static_assert(sizeof(BlockIQ2XXS) == 66 && sizeof(BlockIQ2XS) == 74 && sizeof(BlockIQ2S) == 82);
static_assert(sizeof(BlockIQ3XXS) == 98 && sizeof(BlockIQ3S) == 110);
static_assert(sizeof(BlockIQ1S) == 50 && sizeof(BlockIQ1M) == 56);

}  // namespace weft
