// encode: float32 to quantised blocks, by a search for the scales that lose least; scalar, and the same bytes everywhere.
//
// The loss of a block is the sum of w (x - y)^2 over its elements, y being what decode() makes of it. The weight w of an
// element is its column's importance (1 without one) times sqrt(mean square of the block + x^2): large weights of a
// model matter more than small ones.
#pragma once
#include <cstddef>

#include "core/dtype.h"

namespace weft {

// Rows of `columns` elements, whole blocks each; `count` elements in all. `importance` has a number for each column that is
// not negative, or is null. `blocks` takes the bytes. Values must be finite. Throws Error(unsupported) for types that
// cannot be made: those are f32, f16, bf16, and the grids of the IQ types.
void encode(DType dtype, const float* values, const float* importance, std::byte* blocks, size_t count, size_t columns);

// The same, column by column with feedback (GPTQ): scales of a block are searched when it begins; what rounding an element
// misses is divided by its entry on the diagonal of `factor` and, times the entries right of it, taken off the elements
// right of it in its row. `factor` [columns, columns] is upper triangular with U^T U = H^-1, H being the mean products of
// what columns are multiplied by. `values` change.
void encode_with_feedback(DType dtype, float* values, const float* importance, const float* factor, std::byte* blocks,
                          size_t count, size_t columns);

bool can_encode(DType dtype);

}  // namespace weft
