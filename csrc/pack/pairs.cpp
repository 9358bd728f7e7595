#include "pack/pairs.h"

#include <cstring>
#include <vector>

#include "core/half.h"
#include "quant/dequant.h"

namespace weft {

// Rounds `values` to bfloat16 and stores them in pairs; the remainders stay in `values`.
static void put_rounded(float* values, uint16_t* bits, int64_t cols, std::byte* to) {
  for (int64_t k = 0; k < cols; ++k) {
    bits[k] = float_to_bf16_normal(values[k]);
    values[k] -= bf16_to_float(bits[k]);
  }
  for (int64_t k = 0; k < cols; k += 2) std::memcpy(to + k / 2 * kPairRows * 4, bits + k, 4);
}

// Parts 1: the rounded values. Parts 2: also the rounded remainders, in columns of their own after all of the first.
static void pack(int parts, DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order,
                 int64_t rows, int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  const auto count = static_cast<size_t>(cols);
  std::vector<float> values(count);
  std::vector<uint16_t> bits(count + 1);  // an odd last column has a zero beside it
  const int64_t panel_columns = padded_columns(cols * parts);
  for (int64_t place = panel_begin * kPairRows; place < panel_end * kPairRows && place < rows; ++place) {
    const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[place] : place) * row_bytes;
    dequantise(dtype, from, values.data(), count);
    std::byte* to = out + place / kPairRows * kPairRows * panel_columns * 2 + place % kPairRows * 4;
    for (int part = 0; part < parts; ++part)
      put_rounded(values.data(), bits.data(), cols, to + part * cols / 2 * kPairRows * 4);
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
