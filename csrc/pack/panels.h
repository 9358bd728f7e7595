// panels: the packed layouts. A panel is 16 rows interleaved, so that one vector holds 16 outputs; the last panel of a
// matrix is padded with zero rows.
//
// f32, f16, bf16   [panel][k][16] in the file's element type; any number of columns.
// quantised        [panel]{ codes [chunk][plane vectors][64 bytes], then headers [block], padded to 64 bytes }
//   codes  A chunk is 32 columns, cut into eight groups of four. One 64-byte vector is [16 rows][4 columns] of one
//          group, a byte a code: what vpdpbusd wants beside four broadcast activation bytes, and what a row of an int8
//          tile wants. A code of b bits is kept in planes: a plane of p bits is p vectors, with group g in vector g % p
//          at bit (g / p) * p of each byte. 4-bit codes are one plane; 5 = 4 + 1; 6 = 4 + 2.
//          A plane of 3 bits is three vectors of nibbles, so that a code is looked up with one step before it: vector v
//          has group v in bits 1 to 3, group v + 3 in bits 4 to 6, bit v of group 7 in bit 0, and bit 2 - v of group 6 in
//          bit 7. The look-ups' tables do not mind the odd bit.
//   header d f16 [16]; m or dmin f16 [16] where the type has minima; the sub-blocks' integer scales, then their minima,
//          each as bytes [sub / 2][16 rows][2], so that widened to 16 bits they are pairs for a multiply-add.
// Codes and 32-wide types take exactly the file's bytes; K types up to 4 % more (6-bit scales become bytes). The lower iq
// types take more, because a vector out of a grid becomes its elements: 3.3 bits a weight for iq1_s to iq2_xxs, 3.6 for
// iq1_m, iq2_xs and iq2_s, 4.3 for iq3; tq 2.3. docs/LOG.md has what reading the grid itself would cost.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/weight.h"

namespace weft {

// Whether this type can be packed; its columns must be whole blocks.
bool has_panels(DType dtype);

// Bytes of one panel and of a matrix; throws Error(unsupported) for a type without panels.
size_t panel_bytes(DType dtype, int64_t cols);
size_t panels_bytes(DType dtype, int64_t rows, int64_t cols);

// Packs panels [panel_begin, panel_end) of a matrix into their place in `out`, the start of the whole packed matrix,
// zeroed before. Source row i lies at rows_data + i * row_bytes; row_order (or null) names the source row of each
// packed row.
void pack_panels(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                 int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end);

// The same with the values of any type rounded to f16.
void pack_halves(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                 int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end);

// One row as float32, out of either layout, of a matrix of a stack; equal bit for bit to `dequantise` of the original row.
void read_row(const Weight& weight, int64_t row, float* out, int64_t matrix = 0);

}  // namespace weft
