// pairs: matrices of bfloat16 in the matrix unit's layout. 16 rows are interleaved and columns lie in pairs:
// [panel][column / 2][16 rows][2]. Rows are padded with zeros to 16, columns to 32: one instruction's share.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace weft {

inline constexpr int64_t kPairRows = 16, kPairColumns = 32;

constexpr int64_t padded_columns(int64_t cols) { return (cols + kPairColumns - 1) / kPairColumns * kPairColumns; }
constexpr size_t pairs_bytes(int64_t rows, int64_t cols) {
  return static_cast<size_t>((rows + kPairRows - 1) / kPairRows * kPairRows * padded_columns(cols)) * 2;
}

// Packs panels [panel_begin, panel_end) of a matrix of any type, rounded to nearest even, into their place in `out`, the
// start of the whole packed matrix, zeroed before. The other arguments are those of pack_panels.
void pack_pairs(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end);

// The same of a matrix split in two: its rounded values, then the rounded remainders: a matrix of 2 * cols
// columns. cols is a multiple of 32.
void pack_split(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end);

}  // namespace weft
