// Any bits are a quantised block: reading them is defined, packed and unpacked rows agree to the bit, and the kernels of
// every level take them. The input: type, shape, one row of activations' bits, then the blocks.
#include <atomic>
#include <vector>

#include "core/levels.h"
#include "core/memory.h"
#include "core/weight.h"
#include "fuzz/target.h"
#include "pack/panels.h"
#include "quant/dequant.h"

using namespace weft;

namespace {

constexpr DType kTypes[] = {
#define WEFT_TYPE(name, ...) DType::name,
    WEFT_DTYPES(WEFT_TYPE)
#undef WEFT_TYPE
};

void run_kernel(const Level& level, const char* op, std::vector<Operand> in, Operand out, std::vector<Attr> attrs) {
  static const Memory scratch(kScratchBytes);
  std::atomic<int64_t> counter{0};
  const Call call{in.data(), &out, attrs.data(), static_cast<int>(in.size()), 1, static_cast<int>(attrs.size())};
  find_kernel(level, op)(call, Worker{0, 1, &counter, scratch.data()});
}

Operand operand_of(std::vector<std::byte>& bytes, DType dtype, int64_t rows, int64_t cols) {
  return {bytes.data(), dtype, 2, {rows, cols}};
}

// Products with the packed matrix at every level, of a row of activations that may be anything.
void multiply(const Weight& weight, std::vector<std::byte> row) {
  const int64_t cols = weight.cols;
  Operand matrix;
  matrix.weight = &weight;
  std::vector<std::byte> result(static_cast<size_t>(weight.rows) * sizeof(float));
  const Operand out = operand_of(result, DType::f32, 1, weight.rows);
  const DType a8 = info(weight.dtype).block == 256 ? DType::a8_256 : DType::a8_32;
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    run_kernel(level, "matmul", {operand_of(row, DType::f32, 1, cols), matrix, {}}, out, {{"activation", 0}});
    if (!is_quantised(weight.dtype)) continue;
    std::vector<std::byte> codes(bytes_of(a8, static_cast<size_t>(cols)));
    const Operand rounded = operand_of(codes, a8, 1, cols);
    const Attr block{"block", static_cast<double>(info(a8).block)};
    run_kernel(level, "quantise_rows", {operand_of(row, DType::f32, 1, cols)}, rounded, {block});
    run_kernel(level, "matmul_q", {rounded, matrix, {}}, out, {{"activation", 0}});
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  const DType dtype = kTypes[fields.byte() % std::size(kTypes)];
  const uint8_t shape = fields.byte();
  const int64_t rows = 1 + (shape & 31), cols = info(dtype).block * (1 + (shape >> 5));
  const size_t row_bytes = bytes_of(dtype, static_cast<size_t>(cols));
  std::vector<std::byte> activations(static_cast<size_t>(cols) * sizeof(float)), file(row_bytes * static_cast<size_t>(rows));
  const std::string_view seen = fields.text(activations.size() / 4), blocks = fields.rest();
  for (size_t i = 0; i < activations.size() && !seen.empty(); ++i) activations[i] = std::byte(seen[i % seen.size()]);
  for (size_t i = 0; i < file.size() && !blocks.empty(); ++i) file[i] = std::byte(blocks[i % blocks.size()]);
  std::vector<float> whole(static_cast<size_t>(rows * cols)), row(static_cast<size_t>(cols));
  if (!fuzz::accepted([&] { dequantise(dtype, file.data(), whole.data(), whole.size()); })) return 0;
  if (!has_panels(dtype)) return 0;
  Weight weight;
  weight.dtype = dtype, weight.layout = Layout::panels, weight.rows = rows, weight.cols = cols;
  weight.bytes = panels_bytes(dtype, rows, cols);
  weight.owned = Memory(weight.bytes);
  weight.data = weight.owned.data();
  pack_panels(dtype, file.data(), row_bytes, nullptr, rows, cols, weight.owned.data(), 0, (rows + 15) / 16);
  for (int64_t i = 0; i < rows; ++i) {
    read_row(weight, i, row.data());
    REQUIRE(std::memcmp(row.data(), whole.data() + i * cols, row.size() * sizeof(float)) == 0);
  }
  multiply(weight, activations);
  return 0;
}
