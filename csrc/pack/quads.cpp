#include "pack/quads.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "quant/dequant.h"

namespace weft {
namespace {

std::vector<float> largest_by_column(DType dtype, const std::byte* data, size_t row_bytes, int64_t rows, size_t cols) {
  std::vector<float> values(cols), largest(cols);
  for (int64_t row = 0; row < rows; ++row) {
    dequantise(dtype, data + static_cast<size_t>(row) * row_bytes, values.data(), cols);
    for (size_t k = 0; k < cols; ++k) largest[k] = std::max(largest[k], std::abs(values[k]));
  }
  return largest;
}

// Row `row` of the matrix: its codes and its scale.
void write_row(std::vector<float>& values, int64_t row, const Quads<std::byte>& out) {
  const auto* factors = reinterpret_cast<const float*>(out.factors());
  float largest = 0;
  for (size_t k = 0; k < values.size(); ++k) largest = std::max(largest, std::abs(values[k] /= factors[k]));
  const float inverse = 127.0f / largest;
  const bool usable = std::isfinite(inverse);
  reinterpret_cast<float*>(out.scales())[row] = usable ? largest / 127.0f : 0.0f;
  if (!usable) return;
  auto* to = reinterpret_cast<int8_t*>(out.codes()) + row / kQuadRows * kQuadRows * out.cols + row % kQuadRows * 4;
  for (size_t k = 0; k < values.size(); ++k) {
    const float code = std::nearbyint(values[k] * inverse);
    to[k / 4 * kQuadRows * 4 + k % 4] = static_cast<int8_t>(code >= -127.0f && code <= 127.0f ? code : 0);
  }
}

}  // namespace

void write_factors(DType dtype, const std::byte* rows_data, size_t row_bytes, int64_t rows, int64_t cols, bool equalise,
                   std::byte* out) {
  auto* factors = reinterpret_cast<float*>(Quads<std::byte>{out, rows, cols}.factors());
  std::fill(factors, factors + cols, 1.0f);
  if (!equalise) return;
  const std::vector<float> largest = largest_by_column(dtype, rows_data, row_bytes, rows, static_cast<size_t>(cols));
  const float top = *std::max_element(largest.begin(), largest.end());
  for (size_t k = 0; k < largest.size(); ++k) {
    const float root = std::sqrt(std::sqrt(largest[k] / top));
    factors[k] = root >= 0.0625f ? root : 0.0625f;  // also where all weights are zero
  }
}

void pack_quads(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, std::byte* out, int64_t panel_begin, int64_t panel_end) {
  const Quads<std::byte> packed{out, rows, cols};
  std::vector<float> values(static_cast<size_t>(cols));
  for (int64_t row = panel_begin * kQuadRows; row < std::min(rows, panel_end * kQuadRows); ++row) {
    const std::byte* from = rows_data + static_cast<size_t>(row_order ? row_order[row] : row) * row_bytes;
    dequantise(dtype, from, values.data(), values.size());
    write_row(values, row, packed);
  }
}

}  // namespace weft
