// quads: matrices of int8 for products with int8 rows, in the matrix unit's layout. 16 rows are interleaved and
// columns lie in fours: [panel][column / 4][16 rows][4]; then a scale for each row and a factor for each column. A
// weight is code * scale[row] * factor[column]. Rows are padded with zeros to 16; columns are a multiple of 64.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/kernel.h"

namespace weft {

inline constexpr int64_t kQuadRows = 16, kQuadColumns = 64;

WEFT_INLINE constexpr int64_t quad_rows(int64_t rows) { return (rows + kQuadRows - 1) / kQuadRows * kQuadRows; }
WEFT_INLINE constexpr size_t quads_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>(quad_rows(rows) * (cols + 4) + cols * 4);
}

// Where things lie in a packed matrix; for kernels too, so always inline.
template <class Byte>
struct Quads {
  Byte* data;
  int64_t rows, cols;
  WEFT_INLINE auto codes() const { return data; }
  WEFT_INLINE auto scales() const { return data + quad_rows(rows) * cols; }
  WEFT_INLINE auto factors() const { return scales() + quad_rows(rows) * 4; }
};

// The first step of packing a matrix into `out`: its factors. Equalised, a column with smaller weights than others gets a
// factor below one, which multiplies the activations and divides the weights: the fourth root of its largest weight over
// the largest of all, at least 1/16. Otherwise all factors are one.
void write_factors(DType dtype, const std::byte* rows_data, size_t row_bytes, int64_t rows, int64_t cols, bool equalise,
                   std::byte* out);

// The rows of panels [panel_begin, panel_end) of a matrix of any float type, codes zeroed before and factors written: each
// is rounded to 127 steps of its largest weight.
void pack_quads(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end);

}  // namespace weft
