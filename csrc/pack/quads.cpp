#include "pack/quads.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "quant/dequant.h"

namespace weft {
namespace {

struct Source {
  DType dtype;
  const std::byte* data;
  size_t row_bytes;
  const int32_t* order;
  void read(int64_t row, std::vector<float>& values) const {
    const std::byte* from = data + static_cast<size_t>(order ? order[row] : row) * row_bytes;
    dequantise(dtype, from, values.data(), values.size());
  }
};

// f(begin, end) for parts of [0, count), a thread each.
template <class F>
void share(int64_t count, int threads, F f) {
  const int64_t team = std::max<int64_t>(1, std::min<int64_t>(threads, count / 8));
  std::vector<std::thread> workers;
  for (int64_t part = 1; part < team; ++part) workers.emplace_back(f, count * part / team, count * (part + 1) / team);
  f(0, count / team);
  for (std::thread& worker : workers) worker.join();
}

std::vector<float> largest_by_column(const Source& source, int64_t rows, int64_t cols) {
  std::vector<float> values(static_cast<size_t>(cols)), largest(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    source.read(row, values);
    for (size_t k = 0; k < values.size(); ++k) largest[k] = std::max(largest[k], std::abs(values[k]));
  }
  return largest;
}

void write_factors(const Source& source, int64_t rows, int64_t cols, float* factors) {
  const std::vector<float> largest = largest_by_column(source, rows, cols);
  const float top = *std::max_element(largest.begin(), largest.end());
  for (size_t k = 0; k < largest.size(); ++k) {
    const float root = std::sqrt(std::sqrt(largest[k] / top));
    factors[k] = root >= 0.0625f ? root : 0.0625f;  // also where all weights are zero
  }
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

void pack_quads(DType dtype, const std::byte* rows_data, size_t row_bytes, const int32_t* row_order, int64_t rows,
                int64_t cols, bool equalise, std::byte* out, int threads) {
  const Source source{dtype, rows_data, row_bytes, row_order};
  const Quads<std::byte> packed{out, rows, cols};
  auto* factors = reinterpret_cast<float*>(packed.factors());
  std::fill(factors, factors + cols, 1.0f);
  if (equalise) write_factors(source, rows, cols, factors);
  share(rows, threads, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(cols));
    for (int64_t row = begin; row < end; ++row) {
      source.read(row, values);
      write_row(values, row, packed);
    }
  });
}

}  // namespace weft
