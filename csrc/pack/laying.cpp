#include "pack/laying.h"

#include <string>
#include <vector>

#include "core/error.h"
#include "pack/formats.h"
#include "pack/pairs.h"
#include "pack/panels.h"
#include "pack/quads.h"
#include "quant/dequant.h"

namespace weft {

size_t row_bytes(DType dtype, int64_t cols) {
  if (cols < 1 || cols % info(dtype).block) fail(ErrorKind::input, "weight", "a row of " + std::to_string(cols) + " elements is not whole blocks of " + std::string(info(dtype).name));
  return bytes_of(dtype, static_cast<size_t>(cols));
}

void check_weight_size(DType dtype, int64_t rows, int64_t cols, size_t given) {
  uint64_t wanted = 0;  // where addresses have 32 bits, sizes that a file claims may have more
  if (rows < 1 || cols > INT32_MAX * int64_t{64} || (sizeof(size_t) < 8 && cols > INT32_MAX / 4) || __builtin_mul_overflow(static_cast<uint64_t>(row_bytes(dtype, cols)), static_cast<uint64_t>(rows), &wanted) || wanted != given)
    fail(ErrorKind::input, "weight", std::string("(") + std::to_string(rows) + ", " + std::to_string(cols) + ") of " + std::string(info(dtype).name) + " does not fill " + std::to_string(given) + " bytes");
}

PackPart packer_named(std::string_view layout) {
  if (layout == "panels") return &pack_panels;
  if (layout == "halves") return &pack_halves;
  if (layout == "pairs") return &pack_pairs;
  if (layout == "split") return &pack_split;
  if (layout == "quads" || layout == "equalised") return &pack_quads;
  fail(ErrorKind::input, "weight", "unknown layout: " + std::string(layout) + "; use panels, halves, pairs, split, quads or equalised");
}

Weight packed_like(PackPart pack, DType stored, int64_t rows, int64_t cols) {
  const bool quads = pack == &pack_quads, pairs = pack == &pack_pairs || pack == &pack_split;
  const int64_t step = pack == &pack_split ? kPairColumns : quads ? kQuadColumns : 1;
  if (cols % step || cols > INT32_MAX)
    fail(ErrorKind::input, "weight", "rows must have a multiple of " + std::to_string(step) + " elements: got " + std::to_string(cols));
  // Where addresses have 32 bits, a file with less than a panel of rows may be larger than all memory once it is padded.
  const auto padded = static_cast<uint64_t>((rows + kPanelRows - 1) / kPanelRows * kPanelRows) * static_cast<uint64_t>(cols);
  if (padded > SIZE_MAX / (is_quantised(stored) ? 2 : 4)) fail(ErrorKind::memory, "weight", std::to_string(rows) + " rows of " + std::to_string(cols) + " elements are larger than all memory");
  Weight weight;
  weight.dtype = pairs ? DType::bf16 : pack == &pack_halves ? DType::f16 : stored;
  weight.layout = quads ? Layout::quads : pairs ? Layout::pairs : Layout::panels;
  weight.rows = rows;
  weight.cols = pack == &pack_split ? 2 * cols : cols;
  weight.bytes = quads   ? quads_bytes(rows, cols)
                 : pairs ? pairs_bytes(rows, weight.cols)
                         : panels_bytes(weight.dtype, rows, cols);
  return weight;
}

std::byte* allocate_weight(Weight& weight, Arena* arena) {
  if (!arena) {
    weight.owned = Memory(weight.bytes);
    weight.data = weight.owned.data();
    return weight.owned.data();
  }
  std::shared_ptr<std::byte> block = arena->take(weight.bytes);
  weight.data = block.get();
  weight.borrowed = block;
  return block.get();
}

std::shared_ptr<Weight> widened_vector(DType stored, int64_t count, const std::byte* data, const int32_t* row_order, bool plus_one, Arena* arena) {
  std::vector<float> values(static_cast<size_t>(count));
  dequantise(stored, data, values.data(), values.size());
  auto weight = std::make_shared<Weight>();
  weight->rows = 1;
  weight->cols = count;
  weight->bytes = values.size() * sizeof(float);
  auto* out = reinterpret_cast<float*>(allocate_weight(*weight, arena));
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = values[row_order ? static_cast<size_t>(row_order[i]) : i];
    out[i] = plus_one ? value + 1.0f : value;
  }
  return weight;
}

}  // namespace weft
