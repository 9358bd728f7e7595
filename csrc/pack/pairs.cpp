#include "pack/pairs.h"

#include <vector>

#include "core/half.h"
#include "quant/dequant.h"

namespace weft {

// Parts 1: the values, rounded. Parts 2: also what the rounding left, in columns of their own after all of the first.
static void pack(int parts, DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order,
                 int64_t rows, int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  std::vector<float> values(static_cast<size_t>(cols));
  auto* packed = reinterpret_cast<uint16_t*>(out);
  const int64_t panel_columns = padded_columns(cols * parts);
  for (int64_t place = panel_begin * kPairRows; place < panel_end * kPairRows && place < rows; ++place) {
    const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[place] : place) * row_bytes;
    dequantise(dtype, from, values.data(), values.size());
    uint16_t* to = packed + place / kPairRows * kPairRows * panel_columns + place % kPairRows * 2;
    for (int64_t k = 0; k < cols * parts; ++k) {
      float& value = values[static_cast<size_t>(k % cols)];
      const uint16_t bits = float_to_bf16_normal(value);
      to[k / 2 * kPairRows * 2 + k % 2] = bits;
      value -= bf16_to_float(bits);
    }
  }
}

void pack_pairs(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  pack(1, dtype, rows_data, row_bytes, row_order, rows, cols, out, panel_begin, panel_end);
}

void pack_split(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  pack(2, dtype, rows_data, row_bytes, row_order, rows, cols, out, panel_begin, panel_end);
}

}  // namespace weft
