// matmul_tiles: matmul_q through the matrix unit (AMX), 16 rows of x and one panel of W at a time. Its sums are exact
// integers, so the bits are those of every other level.
//
//   32-wide types   one product of 32 columns per block: codes as signed bytes
//   K types         scale * code = 128 * high + low, two planes of signed bytes over the whole super-block, so that the
//                   sub-blocks cost nothing: sum = 128 * (x . high) + x . low
#pragma once
#include "kernels/matmul_codes.h"
#include "kernels/matmul_epilogue.h"
#include "simd/tiles.h"

namespace weft::ISA {

constexpr int kTileRows = 16;
constexpr int64_t kTileColumns = 1024;        // of W, unpacked at once
constexpr int64_t kTileScratch = 40 << 10;    // sums, then the unpacked planes

// tmm0 and tmm1 are sums, tmm4 holds rows of x, tmm6 and tmm7 columns of W.
template <DType type>
WEFT_INLINE void shape_tiles() {
  constexpr int columns = format_of(type).subs ? 64 : 32;  // one instruction's share of a row of x
  TileShapes shapes;
  for (int i : {0, 1}) shapes.bytes[i] = 64, shapes.rows[i] = kTileRows;
  shapes.bytes[4] = columns, shapes.rows[4] = kTileRows;
  for (int i : {6, 7}) shapes.bytes[i] = 64, shapes.rows[i] = columns / 4;
  _tile_loadconfig(&shapes);
}

template <DType type>
constexpr int64_t plane_bytes(int64_t columns) {
  return columns * kPanelRows * (format_of(type).subs ? 2 : 1);
}

// scale * (code - offset) of one group, split into planes 64 bytes wide.
template <DType type>
WEFT_INLINE void split_group(u8x64 code, __m512i scale, int8_t* low, int8_t* high) {
  const __m512i offset = _mm512_set1_epi16(format_of(type).offset);
  const __m512i even = _mm512_sub_epi16(_mm512_and_si512(code.v, _mm512_set1_epi16(255)), offset);
  const __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(code.v, 8), offset);
  const __m512i a = _mm512_mullo_epi16(even, scale), b = _mm512_mullo_epi16(odd, scale);
  const __m512i bits = _mm512_or_si512(_mm512_and_si512(a, _mm512_set1_epi16(127)),
                                       _mm512_slli_epi16(_mm512_and_si512(b, _mm512_set1_epi16(127)), 8));
  // a >> 7 in the low byte, b >> 7 in the high one: bits 7 to 14 of each
  const __m512i top = _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAA, _mm512_srai_epi16(a, 7), _mm512_slli_epi16(b, 1));
  _mm512_store_si512(low, bits);
  _mm512_store_si512(high, top);
}

// Blocks [first, first + count) of a panel as planes: [block][8][64], or [block][4 steps][low, high][16][64].
template <DType type>
static void unpack_planes(const std::byte* codes, const std::byte* heads, int64_t first, int64_t count, int8_t* out) {
  constexpr Format f = format_of(type);
  for (int64_t b = first; b < first + count; ++b)
    for (int chunk = 0; chunk < f.chunks(); ++chunk) {
      u8x64 groups[8];
      unpack<type, true>(codes + (b * f.chunks() + chunk) * f.chunk_bytes(), groups);
      if constexpr (f.subs == 0) {
        for (int g = 0; g < 8; ++g, out += 64)
          _mm512_store_si512(out, _mm512_sub_epi8(groups[g].v, _mm512_set1_epi8(static_cast<char>(f.offset))));
      } else {
        int8_t* low = out + (chunk / 2) * 2048 + chunk % 2 * 512;
        for (int g = 0; g < 8; ++g) {
          const int sub = (chunk * 32 + g * 4) / (256 / f.subs);
          const __m512i both = scale_pairs<type>(heads + b * f.head_bytes(), sub / 2).v;
          const __m512i wide = sub % 2 ? _mm512_srli_epi32(both, 16) : _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF));
          split_group<type>(groups[g], _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16)), low + g * 64,
                            low + 1024 + g * 64);
        }
        if (chunk == f.chunks() - 1) out += f.block * kPanelRows * 2;
      }
    }
}

// The sums of one block of W for 16 rows of x, left in tmm0, and for K types tmm1. `x` is the first row's codes.
template <DType type>
WEFT_INLINE void multiply_block(const int8_t* x, int64_t x_stride, const int8_t* w) {
  _tile_zero(0);
  if constexpr (format_of(type).subs == 0) {
    _tile_loadd(4, x, x_stride);
    _tile_loadd(6, w, 64);
    _tile_dpbssd(0, 4, 6);
  } else {
    _tile_zero(1);
    for (int step = 0; step < 4; ++step) {
      _tile_loadd(4, x + step * 64, x_stride);
      _tile_loadd(6, w + step * 2048, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(7, w + step * 2048 + 1024, 64);
      _tile_dpbssd(1, 4, 7);
    }
  }
}

template <DType type>
WEFT_INLINE void store_sums(int32_t* sums) {
  _tile_stored(0, sums, 64);
  if constexpr (format_of(type).subs != 0) _tile_stored(1, sums + 256, 64);
}

}  // namespace weft::ISA
