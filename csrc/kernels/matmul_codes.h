// matmul_codes: the parts of a quantised panel (pack/panels.h) as vectors.
#pragma once
#include "kernels/matmul_ints.h"
#include "pack/formats.h"

namespace weft::ISA {

// What 4-bit indices are looked up in: the levels of a type, as they are or + 128. Of 3-bit codes the levels come twice: `low`
// for a code above a bit that belongs to another group, `high` for one below it.
struct LookUp {
  uint8_t low[16], high[16];
};
consteval LookUp look_up_of(Format f, bool as_signed) {
  LookUp table{};
  for (int i = 0; i < 16; ++i) {
    const auto level = [=](int code) { return static_cast<uint8_t>(f.value(code) + (as_signed ? 0 : 128)); };
    table.low[i] = level(f.low == 3 ? i >> 1 : i);
    table.high[i] = level(f.low == 3 ? i & 7 : i);
  }
  return table;
}
template <DType type, bool as_signed>
constexpr LookUp kLookUp = look_up_of(format_of(type), as_signed);

template <DType type>
constexpr bool has_levels() {
  return format_of(type).levels != Levels::none;
}

// The largest code as unpacked.
template <DType type>
constexpr int largest_code() {
  return has_levels<type>() ? 255 : (1 << format_of(type).bits()) - 1;
}

#if !defined(WEFT_ISA_neon)
// `code`, whose bits from `to` on are 0, with bits [at, at + count) of `plane` there.
template <int at, int count, int to>
WEFT_INLINE u8x64 with_bits(u8x64 code, u8x64 plane) {
  return code | bits<at, count, to>(plane);
}
// Groups 6 and 7 of 3-bit codes: the top and the lowest bits of three vectors.
WEFT_INLINE u8x64 top_bits(u8x64 a, u8x64 b, u8x64 c) { return bits<7, 1, 2>(a) | bits<7, 1, 1>(b) | bits<7, 1, 0>(c); }
WEFT_INLINE u8x64 lowest_bits(u8x64 a, u8x64 b, u8x64 c) {
  return bits<0, 1, 0>(a) | bits<0, 1, 1>(b) | bits<0, 1, 2>(c);
}
#endif

// Group g of a chunk of 3-bit codes (pack/panels.h), looked up.
template <int g>
WEFT_INLINE u8x64 unpack_threes(const std::byte* chunk, const LookUp& table) {
  if constexpr (g < 3) return look_up(table.low, bits<0, 4, 0>(load_bytes(chunk + g * 64)));
  if constexpr (g < 6) return look_up(table.high, bits<4, 4, 0>(load_bytes(chunk + (g - 3) * 64)));
  const u8x64 a = load_bytes(chunk), b = load_bytes(chunk + 64), c = load_bytes(chunk + 128);
  return look_up(table.high, g == 6 ? top_bits(a, b, c) : lowest_bits(a, b, c));
}

// Group g of a chunk: its bits out of both planes, and the levels they stand for; `as_signed`: these as signed bytes.
template <DType type, int g, bool as_signed = false>
WEFT_INLINE u8x64 unpack_group(const std::byte* chunk) {
  constexpr Format f = format_of(type);
  static_assert(!as_signed || has_levels<type>());
  if constexpr (f.low == 3) return unpack_threes<g>(chunk, kLookUp<type, as_signed>);
  u8x64 code = bits<g / f.low * f.low, f.low, 0>(load_bytes(chunk + g % f.low * 64));
  if constexpr (f.high > 0)
    code = with_bits<g / f.high * f.high, f.high, f.low>(code, load_bytes(chunk + (f.low + g % f.high) * 64));
  if constexpr (has_levels<type>()) code = look_up(kLookUp<type, as_signed>.high, code);
  return code;
}

// The eight groups of a chunk.
template <DType type, bool as_signed = false>
WEFT_INLINE void unpack(const std::byte* chunk, u8x64* codes) {
  codes[0] = unpack_group<type, 0, as_signed>(chunk), codes[1] = unpack_group<type, 1, as_signed>(chunk);
  codes[2] = unpack_group<type, 2, as_signed>(chunk), codes[3] = unpack_group<type, 3, as_signed>(chunk);
  codes[4] = unpack_group<type, 4, as_signed>(chunk), codes[5] = unpack_group<type, 5, as_signed>(chunk);
  codes[6] = unpack_group<type, 6, as_signed>(chunk), codes[7] = unpack_group<type, 7, as_signed>(chunk);
}

// d (which = 0), or m or dmin (1), of the 16 rows.
template <DType type>
WEFT_INLINE f32x16 half_row(const std::byte* header, int which) {
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(header) + which * 16;
  if constexpr (format_of(type).powers()) return load_bf16(halves);
  if (format_of(type).zeros() && which) return zero() - load_f16(halves - 16) * load_f16(halves);
  if constexpr (format_of(type).parts > 1) return load_f16(halves) * splat(1.0f / format_of(type).parts);
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
