// weight_rows: rows of a weight of any type and layout as float32, a tile at a time.
#pragma once
#include "kernels/matmul_floats.h"
#include "pack/panels.h"
#include "simd/transpose.h"

namespace weft::ISA {

// A panel [depth][16] as 16 rows, `stride` apart; `depth` elements of each are written, and up to 15 more that mean nothing.
WEFT_INLINE void spread_panel(const float* panel, int64_t depth, float* to, int64_t stride) {
#if defined(WEFT_ISA_avx512)
  for (int64_t k = 0; k < depth; k += 16) {
    __m512i rows[16];
    for (int i = 0; i < 16; ++i) rows[i] = k + i < depth ? _mm512_loadu_si512(panel + (k + i) * 16) : _mm512_setzero_si512();
    transpose(rows);
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * stride + k, rows[i]);
  }
#else
  turn(to, stride, panel, 16, depth, 16);
#endif
}

// Reads tiles of one matrix: kTileRows rows of kDepth columns at most, both from whole multiples of these on.
struct WeightRows {
  // A stride that is a power of two would put a column's rows into a few sets of the first-level cache.
  static constexpr int64_t kTileRows = 64, kTileStride = kDepth + 16;
  static constexpr int64_t kTileBytes = int64_t{sizeof(float)} * (kTileRows * kTileStride + kDepth * 16);

  const Weight& weight;
  int64_t matrix;
  float* tile;  // kTileBytes of scratch

  struct Tile {
    const float* data;
    int64_t stride;
  };

  // Rows [row, row + count) of columns [k, k + depth), in place where they lie as they are wanted.
  Tile read(int64_t row, int64_t count, int64_t k, int64_t depth) const {
    const std::byte* data = weight.stack ? weight.stack[matrix] : weight.data;
    if (weight.layout == Layout::rows) {
      const DTypeInfo& type = info(weight.dtype);
      if (weight.dtype == DType::f32) return {reinterpret_cast<const float*>(data) + row * weight.cols + k, weight.cols};
      const int64_t row_bytes = weight.cols / type.block * type.bytes, skip = k / type.block * type.bytes;
      for (int64_t i = 0; i < count; ++i)
        dequantise(weight.dtype, data + (row + i) * row_bytes + skip, tile + i * kTileStride, static_cast<size_t>(depth));
      return {tile, kTileStride};
    }
    float* panel = tile + kTileRows * kTileStride;
    if (weight.layout != Layout::panels) {
      for (int64_t i = 0; i < count; ++i) {
        read_row(weight, row + i, panel, matrix);
        std::memcpy(tile + i * kTileStride, panel + k, static_cast<size_t>(depth) * sizeof(float));
      }
      return {tile, kTileStride};
    }
    const Product a{nullptr, nullptr, weight.dtype, weight.layout, data, weight.cols, weight.rows, nullptr};
    for (int64_t i = 0; i < count; i += 16) {
      const float* from = panel;
      if (weight.dtype == DType::f32) from = reinterpret_cast<const float*>(data) + ((row + i) / 16 * weight.cols + k) * 16;
      else widen_panel(a, (row + i) / 16, k, depth, panel);
      spread_panel(from, depth, tile + i * kTileStride, kTileStride);
    }
    return {tile, kTileStride};
  }
};

}  // namespace weft::ISA
