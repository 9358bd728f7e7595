// matmul_decode: quantised panels back to float panels [k][16], for products with float activations. The operations are
// those of `dequantise` in the same order, so the values are the same to the bit.
#pragma once
#include "kernels/matmul_codes.h"

namespace weft::ISA {

// Four columns of one group: (code - offset) * scale, then - or + the minimum as the type has it.
template <DType type>
WEFT_INLINE void decode_group(u8x64 codes, f32x16 scale, f32x16 min, float* out) {
  constexpr Format f = format_of(type);
  const f32x16 offset = splat(static_cast<float>(f.offset));
  const f32x16 code[4] = {to_float(byte_of<0>(codes)), to_float(byte_of<1>(codes)), to_float(byte_of<2>(codes)),
                          to_float(byte_of<3>(codes))};
  for (int i = 0; i < 4; ++i) {
    f32x16 value = scale * (f.offset ? code[i] - offset : code[i]);
    if constexpr (f.mins) value = f.subs ? value - min : value + min;
    store(out + i * 16, value);
  }
}

// Scale and minimum of sub-block `sub`; of the whole block for types without.
template <DType type>
WEFT_INLINE void decode_scales(const std::byte* header, int sub, f32x16& scale, f32x16& min) {
  constexpr Format f = format_of(type);
  scale = half_row<type>(header, 0);
  if constexpr (f.mins) min = half_row<type>(header, 1);
  if constexpr (f.subs > 0) {
    const pairs scales = scale_pairs<type>(header, sub / 2);
    scale = scale * to_float(sub % 2 ? odd(scales) : even(scales));
    if constexpr (f.mins) {
      const pairs mins = min_pairs<type>(header, sub / 2);
      min = min * to_float(sub % 2 ? odd(mins) : even(mins));
    }
  }
}

// Columns [k, k + depth), whole blocks, of a panel with `cols` columns.
template <DType type>
static void decode_panel(const std::byte* panel, int64_t cols, int64_t k, int64_t depth, float* out) {
  constexpr Format f = format_of(type);
  constexpr int width = f.subs == 16 ? 16 : 32;  // columns under one scale
  const std::byte* headers = panel + f.code_bytes(cols);
  for (int64_t at = k; at < k + depth; at += 32) {
    const std::byte* header = headers + at / f.block * f.header_bytes();
    u8x64 codes[8];
    const std::byte* chunk = panel + at / 32 * f.chunk_bytes();
    // A panel is read in order; the hardware's prefetcher does not run far enough ahead in one stream: up to 1.7x.
    for (int i = 0; i < f.chunk_bytes(); i += 64) __builtin_prefetch(chunk + 1024 + i);
    unpack<type>(chunk, codes);
    for (int g = 0; g < 8; ++g, out += 64) {
      f32x16 scale, min = zero();
      decode_scales<type>(header, static_cast<int>(at % f.block) / width + g * 4 / width, scale, min);
      decode_group<type>(codes[g], scale, min, out);
    }
  }
}

}  // namespace weft::ISA
