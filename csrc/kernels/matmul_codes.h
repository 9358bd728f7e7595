// matmul_codes: the parts of a quantised panel (pack/panels.h) as vectors.
#pragma once
#include "kernels/matmul_ints.h"
#include "pack/formats.h"

namespace weft::ISA {

// The levels of the non-linear 4-bit types (quant/dequant.h), + 128.
constexpr uint8_t kShiftedLevels[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
constexpr uint8_t kShiftedFP4[16] = {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116};

// The largest code as unpacked.
template <DType type>
constexpr int largest_code() {
  constexpr Format f = format_of(type);
  return f.levels ? 255 : (1 << f.bits()) - 1;
}

#if !defined(WEFT_ISA_neon)
// `code`, whose bits from `to` on are 0, with bits [at, at + count) of `plane` there.
template <int at, int count, int to>
WEFT_INLINE u8x64 with_bits(u8x64 code, u8x64 plane) {
  return code | bits<at, count, to>(plane);
}
#endif

// Group g of a chunk: its bits out of both planes.
template <DType type, int g>
WEFT_INLINE u8x64 unpack_group(const std::byte* chunk) {
  constexpr Format f = format_of(type);
  u8x64 code = bits<g / f.low * f.low, f.low, 0>(load_bytes(chunk + g % f.low * 64));
  if constexpr (f.high > 0)
    code = with_bits<g / f.high * f.high, f.high, f.low>(code, load_bytes(chunk + (f.low + g % f.high) * 64));
  if constexpr (f.levels) code = look_up(f.powers ? kShiftedFP4 : kShiftedLevels, code);
  return code;
}

// The eight groups of a chunk.
template <DType type>
WEFT_INLINE void unpack(const std::byte* chunk, u8x64* codes) {
  codes[0] = unpack_group<type, 0>(chunk), codes[1] = unpack_group<type, 1>(chunk);
  codes[2] = unpack_group<type, 2>(chunk), codes[3] = unpack_group<type, 3>(chunk);
  codes[4] = unpack_group<type, 4>(chunk), codes[5] = unpack_group<type, 5>(chunk);
  codes[6] = unpack_group<type, 6>(chunk), codes[7] = unpack_group<type, 7>(chunk);
}

// d (which = 0), or m or dmin (1), of the 16 rows.
template <DType type>
WEFT_INLINE f32x16 half_row(const std::byte* header, int which) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(header) + which * 16;
  if constexpr (format_of(type).powers) return load_bf16(halves);
  return load_f16(halves);
}

// The integer scales of sub-blocks 2j and 2j + 1, and their minima.
template <DType type>
WEFT_INLINE pairs scale_pairs(const std::byte* header, int j) {
  constexpr Format f = format_of(type);
  const pairs scale = load_pairs<f.signed_subs>(header + (f.mins ? 64 : 32) + j * 32);
  if constexpr (f.nibbles) return low_nibbles(scale);
  return scale;
}
template <DType type>
WEFT_INLINE pairs min_pairs(const std::byte* header, int j) {
  constexpr Format f = format_of(type);
  if constexpr (f.nibbles) return high_nibbles(load_pairs<false>(header + 64 + j * 32));
  return load_pairs<false>(header + 64 + f.scales_bytes() + j * 32);
}

}  // namespace weft::ISA
