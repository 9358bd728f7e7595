#include "core/state.h"

#include <cstring>
#include <string>

#include "core/error.h"

namespace weft {

KvState::KvState(DType dtype, int64_t pages, int64_t heads, int64_t dim, bool own_memory)
    : dtype(dtype), pages(pages), heads(heads), dim(dim),
      element_bytes(dtype == DType::i4r ? (dim + 31) / 32 * 16 * kPage
                                       : static_cast<int64_t>(bytes_of(dtype, static_cast<size_t>(dim * kPage)))),
      block_bytes(element_bytes + (is_scaled(dtype) ? kPage * static_cast<int64_t>(sizeof(float)) : 0)),
      stride(static_cast<int64_t>(page_bytes())) {
  if (!own_memory) return;
  memory = std::make_shared<Memory>(static_cast<size_t>(pages) * page_bytes());
  key = memory->data();
  value = key + half_page();
}

void join_states(std::span<const std::shared_ptr<KvState>> layers) {
  size_t stride = 0, place = 0;
  for (const auto& layer : layers) stride += layer->page_bytes();
  const auto all = std::make_shared<Memory>(layers.empty() ? 0 : stride * static_cast<size_t>(layers[0]->pages));
  for (const auto& layer : layers) {
    layer->memory = all;
    layer->stride = static_cast<int64_t>(stride);
    layer->key = all->data() + place;
    layer->value = layer->key + layer->page_bytes() / 2;
    place += layer->page_bytes();
  }
}

size_t KvState::place_of(int64_t page) const {
  if (page < 0 || page >= pages)
    fail(ErrorKind::input, "state", "no page " + std::to_string(page) + "; there are " + std::to_string(pages));
  return static_cast<size_t>(page * stride);
}

void KvState::check_size(size_t size) const {
  if (size != page_bytes())
    fail(ErrorKind::input, "state", "a page has " + std::to_string(page_bytes()) + " bytes, not " + std::to_string(size));
}

void KvState::read_page(int64_t page, std::byte* out, size_t size) const {
  const size_t place = place_of(page);
  check_size(size);
  std::memcpy(out, key + place, page_bytes());
}

void KvState::write_page(int64_t page, const std::byte* data, size_t size) {
  const size_t place = place_of(page);
  check_size(size);
  std::memcpy(key + place, data, page_bytes());
}

void KvState::copy_page(int64_t source, int64_t target) {
  const size_t from = place_of(source), to = place_of(target);
  if (from != to) std::memcpy(key + to, key + from, page_bytes());
}

SlotState::SlotState(int64_t slots, int64_t size, bool own_memory)
    : slots(slots), size(size), stride(static_cast<int64_t>(slot_bytes())) {
  if (!own_memory) return;
  memory = std::make_shared<Memory>(static_cast<size_t>(slots) * slot_bytes());
  data = memory->data();
}

void join_slots(std::span<const std::shared_ptr<SlotState>> layers) {
  size_t stride = 0, place = 0;
  for (const auto& layer : layers) stride += layer->slot_bytes();
  const auto all = std::make_shared<Memory>(layers.empty() ? 0 : stride * static_cast<size_t>(layers[0]->slots));
  for (const auto& layer : layers) {
    layer->memory = all;
    layer->stride = static_cast<int64_t>(stride);
    layer->data = all->data() + place;
    place += layer->slot_bytes();
  }
}

void SlotState::check(int64_t index, size_t bytes) const {
  if (index < 0 || index >= slots)
    fail(ErrorKind::input, "state", "no slot " + std::to_string(index) + "; there are " + std::to_string(slots));
  if (bytes != slot_bytes())
    fail(ErrorKind::input, "state", "a slot has " + std::to_string(slot_bytes()) + " bytes, not " + std::to_string(bytes));
}

void SlotState::read_slot(int64_t index, std::byte* out, size_t bytes) const {
  check(index, bytes);
  std::memcpy(out, slot(index), bytes);
}

void SlotState::write_slot(int64_t index, const std::byte* from, size_t bytes) {
  check(index, bytes);
  std::memcpy(slot(index), from, bytes);
}

static constexpr int64_t kMaxRank = 4096;  // of a blend; sums of a row of them fit a worker's scratch

static void need(bool fits, const char* what) {
  if (!fits) fail(ErrorKind::weight, "adapter", what);
}

static void check_index(int64_t index) {
  if (index < 1 || index >= kAdapters)
    fail(ErrorKind::input, "adapter", "an index must be 1 to " + std::to_string(kAdapters - 1) + ": got " + std::to_string(index));
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

const AdapterPart AdapterTable::kNoPart{};

AdapterTable::AdapterTable(int64_t rows, int64_t cols, int64_t matrices) : rows_(rows), cols_(cols), matrices_(matrices) {
  if (rows < 1 || cols < 1 || matrices < 1) fail(ErrorKind::input, "adapter", "a table must have at least one row, one column and one matrix");
}

void AdapterTable::put(int64_t index, Kept down, Kept up, Kept scale, Kept gain, Kept shift, int64_t matrix) {
  check_index(index);
  need(matrix >= 0 && matrix < matrices_, "the table has no such matrix");
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
  Entry& entry = entries_[index];
  entry.parts.resize(static_cast<size_t>(matrices_));
  entry.kept.resize(static_cast<size_t>(matrices_));
  const auto place = static_cast<size_t>(matrix);
  entry.parts[place] = {down.get(), up.get(), values(scale), values(gain), values(shift)};
  entry.kept[place] = {std::move(down), std::move(up), std::move(scale), std::move(gain), std::move(shift)};
  parts_[index] = entry.parts.data();
}

void AdapterTable::clear(int64_t index) {
  check_index(index);
  parts_[index] = nullptr;
  entries_.erase(index);
}

}  // namespace weft
