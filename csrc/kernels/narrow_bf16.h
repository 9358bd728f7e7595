// narrow_bf16: blocks of a product in bfloat16 with the matrix unit, which takes 32 rows of B at once. Its sums are those of
// narrow_wide.h to the bit, subnormal ones apart, which the unit makes zero.
#pragma once
#include "kernels/narrow_blocks.h"
#include "kernels/round_bf16.h"
#include "simd/tiles.h"

namespace weft::ISA {

struct Bf16Form {
  static constexpr int64_t kBytes = (kNarrowDepth * kNarrowColumns + kNarrowRows * kNarrowDepth) * 2 + 4 * 1024;

  uint16_t *strip, *row;  // [strips][depth / 2][16][2], [rows][depth]
  float* edge;            // [4][16][16], sums that do not fill a tile of y

  explicit Bf16Form(std::byte* scratch)
      : strip(reinterpret_cast<uint16_t*>(scratch)), row(strip + kNarrowDepth * kNarrowColumns),
        edge(reinterpret_cast<float*>(row + kNarrowRows * kNarrowDepth)) {
    shape_whole_tiles();
  }

  WEFT_INLINE void put(int64_t index, int64_t at, const float* from, int64_t stride, int64_t deep, int64_t columns) {
    uint16_t* to = strip + (index * kNarrowDepth + at) * 16;
    const auto read = [&](int64_t d) {
      const f32x16 value = d >= deep ? zero() : columns == 16 ? load(from + d * stride) : load_n(from + d * stride, columns);
      const __m256bh narrow = _mm512_cvtneps_pbh(value.v);
      return _mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(narrow));
    };
    for (int64_t d = 0; d < (deep + kNarrowStep - 1) / kNarrowStep * kNarrowStep; d += 2)
      _mm512_storeu_si512(to + d * 16, _mm512_or_si512(read(d), _mm512_slli_epi32(read(d + 1), 16)));
  }

  WEFT_INLINE void put_row(int64_t index, const float* x, int64_t deep) {
    uint16_t* to = row + index * kNarrowDepth;
    int64_t k = 0;
    for (; k + 16 <= deep; k += 16) store_rounded(to + k, load(x + k));
    for (; k < (deep + kNarrowStep - 1) / kNarrowStep * kNarrowStep; k += 16)
      store_rounded(to + k, k < deep ? load_n(x + k, deep - k) : zero());
  }

  // Sums of 16 R rows and 16 S columns: tmm0 to tmm3; tmm4 and tmm5 hold rows, tmm6 and tmm7 strips.
  template <int R, int S>
  void tile(int64_t r, int64_t s, int64_t deep, float* sums, int64_t bytes, int64_t down, int64_t across, bool more) const {
    const uint16_t *x = row + r * kNarrowDepth, *w = strip + s * kNarrowDepth * 16;
    if (more) {
      _tile_loadd(0, sums, bytes);
      if constexpr (S > 1) _tile_loadd(1, sums + across, bytes);
      if constexpr (R > 1) _tile_loadd(2, sums + down, bytes);
      if constexpr (R > 1 && S > 1) _tile_loadd(3, sums + down + across, bytes);
    } else {
      _tile_zero(0);
      if constexpr (S > 1) _tile_zero(1);
      if constexpr (R > 1) _tile_zero(2);
      if constexpr (R > 1 && S > 1) _tile_zero(3);
    }
    for (int64_t d = 0; d < deep; d += kNarrowStep) {
      _tile_loadd(4, x + d, 2 * kNarrowDepth);
      _tile_loadd(6, w + d * 16, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (S > 1) _tile_loadd(7, w + (kNarrowDepth + d) * 16, 64);
      if constexpr (S > 1) _tile_dpbf16ps(1, 4, 7);
      if constexpr (R > 1) _tile_loadd(5, x + 16 * kNarrowDepth + d, 2 * kNarrowDepth);
      if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
      if constexpr (R > 1 && S > 1) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, bytes);
    if constexpr (S > 1) _tile_stored(1, sums + across, bytes);
    if constexpr (R > 1) _tile_stored(2, sums + down, bytes);
    if constexpr (R > 1 && S > 1) _tile_stored(3, sums + down + across, bytes);
  }

  // Up to 16 rows and 16 columns, through memory of a whole tile. Rows that are not there keep what memory has: nobody reads it.
  void edge_tile(int64_t r, int64_t s, int64_t rows, int64_t columns, int64_t deep, float* y, int64_t y_stride, bool more) const {
    for (int64_t i = 0; more && i < rows; ++i) store(edge + i * 16, load_n(y + i * y_stride, columns));
    settle_stores();
    tile<1, 1>(r, s, deep, edge, 64, 0, 0, more);
    settle_stores();
    for (int64_t i = 0; i < rows; ++i) store_n(y + i * y_stride, load(edge + i * 16), columns);
  }

  void multiply(int64_t rows, int64_t deep, float* y, int64_t y_stride, int64_t wide, bool more) const {
    settle_stores();
    const int64_t strips = (wide + 15) / 16;
    for (int64_t s = 0; s < strips; s += 2)
      for (int64_t r = 0; r < rows; r += 32) {
        float* to = y + r * y_stride + s * 16;
        if (r + 32 <= rows && (s + 2) * 16 <= wide) {
          tile<2, 2>(r, s, deep, to, y_stride * 4, 16 * y_stride, 16, more);
          continue;
        }
        for (int64_t i = 0; i < 32 && r + i < rows; i += 16)
          for (int64_t j = 0; j < 2 && s + j < strips; ++j) {
            const int64_t there = smaller(16, rows - r - i), columns = smaller(16, wide - (s + j) * 16);
            float* at = to + i * y_stride + j * 16;
            if (there == 16 && columns == 16) tile<1, 1>(r + i, s + j, deep, at, y_stride * 4, 0, 0, more);
            else edge_tile(r + i, s + j, there, columns, deep, at, y_stride, more);
          }
      }
    settle_stores();
  }
};

}  // namespace weft::ISA
