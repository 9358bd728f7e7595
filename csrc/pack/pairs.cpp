#include "pack/pairs.h"

#include <vector>

#include "core/half.h"
#include "quant/dequant.h"

namespace weft {

void pack_pairs(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  std::vector<float> values(static_cast<size_t>(cols));
  auto* packed = reinterpret_cast<uint16_t*>(out);
  for (int64_t place = panel_begin * kPairRows; place < panel_end * kPairRows && place < rows; ++place) {
    const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[place] : place) * row_bytes;
    dequantise(dtype, from, values.data(), values.size());
    uint16_t* to = packed + place / kPairRows * kPairRows * padded_columns(cols) + place % kPairRows * 2;
    for (int64_t k = 0; k < cols; ++k) to[k / 2 * kPairRows * 2 + k % 2] = float_to_bf16_normal(values[static_cast<size_t>(k)]);
  }
}

}  // namespace weft
