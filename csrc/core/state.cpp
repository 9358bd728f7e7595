#include "core/state.h"

#include <string>

#include "core/error.h"

namespace weft {

static constexpr int64_t kMaxRank = 4096;  // of a blend; sums of a row of them fit a worker's scratch

static void need(bool fits, const char* what) {
  if (!fits) fail(ErrorKind::weight, std::string("[adapter] ") + what);
}

static void check_index(int64_t index) {
  if (index < 1 || index >= kAdapters)
    fail(ErrorKind::input, "[adapter] index " + std::to_string(index) + "; 1 to " + std::to_string(kAdapters - 1));
}

static bool is_matrix(const Weight& weight, int64_t rows, int64_t cols) {
  const bool floats = weight.dtype == DType::f32 || weight.dtype == DType::f16 || weight.dtype == DType::bf16;
  return weight.layout == Layout::panels && floats && weight.rows == rows && weight.cols == cols;
}

static bool is_vector(const Weight& weight, int64_t size) {
  return weight.layout == Layout::rows && weight.dtype == DType::f32 && weight.rows == 1 && weight.cols == size;
}

static const float* values(const AdapterTable::Kept& weight) {
  return weight ? reinterpret_cast<const float*>(weight->data) : nullptr;
}

AdapterTable::AdapterTable(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {
  if (rows < 1 || cols < 1) fail(ErrorKind::input, "[adapter] a table has rows and columns");
}

void AdapterTable::put(int64_t index, Kept down, Kept up, Kept scale, Kept gain, Kept shift) {
  check_index(index);
  if (down) {
    const int64_t rank = down->rows;
    need(rank >= 1 && rank <= kMaxRank, "a rank of 1 to 4096 is wanted");
    need(up && scale, "down has neither up nor scale");
    need(is_matrix(*down, rank, cols_) && is_matrix(*up, rows_, rank), "down and up do not fit the weight");
    need(down->dtype == up->dtype, "down and up are not of one type");
    need(is_vector(*scale, rank), "scale is not a number for each rank");
  } else {
    need(!up || (is_matrix(*up, rows_, cols_) && !gain), "a weight in place of another does not fit it");
  }
  need(!gain || is_vector(*gain, rows_), "gain is not a number for each row");
  need(!shift || is_vector(*shift, rows_), "shift is not a number for each row");
  parts_[index] = {down.get(), up.get(), values(scale), values(gain), values(shift)};
  kept_[index] = {std::move(down), std::move(up), std::move(scale), std::move(gain), std::move(shift)};
}

void AdapterTable::clear(int64_t index) {
  check_index(index);
  parts_[index] = {};
  kept_.erase(index);
}

}  // namespace weft
