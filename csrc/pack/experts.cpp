#include "pack/experts.h"

#include <algorithm>
#include <utility>

#include "pack/formats.h"

namespace weft {

static constexpr size_t kAlign = 64;
// Bytes of the file per part: few enough that a team shares the work on one matrix.
static constexpr size_t kPartBytes = size_t{256} << 10;

static bool alike(const ExpertMemory::Stack& one, const ExpertMemory::Stack& other) {
  return one.pack == other.pack && one.stored == other.stored && one.rows == other.rows && one.cols == other.cols;
}

ExpertMemory::Place ExpertMemory::add(Stack stack) {
  std::lock_guard<std::mutex> lock(turn_);
  auto kept = std::make_unique<Kept>();
  const size_t count = stack.sources.size();
  kept->stack = std::move(stack);
  kept->data.assign(count, nullptr);
  kept->slots.resize(count);
  auto found = std::find_if(kinds_.begin(), kinds_.end(), [&](const auto& kind) { return alike(*kind->like, kept->stack); });
  if (found == kinds_.end()) {
    const size_t slot_bytes = (kept->stack.packed_bytes + kAlign - 1) / kAlign * kAlign;
    found = kinds_.insert(found, std::make_unique<Kind>(Kind{&kept->stack, slot_bytes, 0, 0, {}, {}}));
  }
  kept->kind = found->get();
  kept->kind->total_bytes += count * kept->kind->slot_bytes;
  kept->kind->most = std::max(kept->kind->most, count);
  stacks_.push_back(std::move(kept));
  ready_ = false;
  return {stacks_.size() - 1, stacks_.back()->data.data()};
}

std::unique_lock<std::mutex> ExpertMemory::begin() {
  std::unique_lock<std::mutex> lock(turn_);
  if (!ready_) make_slots();
  ready_ = true;
  return lock;
}

// Each kind has the slots of one whole stack, because a product may need all of its matrices, and its share of what is left.
void ExpertMemory::make_slots() {
  for (const auto& kept : stacks_) std::fill(kept->data.begin(), kept->data.end(), nullptr);
  size_t least = 0, total = 0, budget = 0;
  for (const auto& kind : kinds_) least += kind->most * kind->slot_bytes, total += kind->total_bytes;
  const double share = total > least ? static_cast<double>(asked_ - std::min(asked_, least)) / static_cast<double>(total - least) : 0;
  for (const auto& kind : kinds_) {
    const size_t more = kind->total_bytes / kind->slot_bytes - kind->most;
    const size_t count = kind->most + static_cast<size_t>(std::min(share, 1.0) * static_cast<double>(more));
    kind->slots.clear();
    kind->memory = Memory();  // free the old one before allocating the new one
    kind->memory = Memory(count * kind->slot_bytes);
    for (size_t i = 0; i < count; ++i) kind->slots.push_back({kind->memory.data() + i * kind->slot_bytes});
    budget += count * kind->slot_bytes;
  }
  std::lock_guard<std::mutex> lock(counting_);
  counts_.resident = 0, counts_.bytes = 0, counts_.budget = budget;
}

void ExpertMemory::want(size_t place, const int32_t* starts, std::vector<Part>& parts) {
  Kept& kept = *stacks_[place];
  Kind& kind = *kept.kind;
  std::list<Slot>& slots = kind.slots;
  const Stack& stack = kept.stack;
  const int64_t panels = (stack.rows + kPanelRows - 1) / kPanelRows;
  const auto step = std::max<int64_t>(1, static_cast<int64_t>(kPartBytes / (stack.row_bytes * kPanelRows)));
  std::lock_guard<std::mutex> lock(counting_);
  // First those that are there, so that none of them is given away.
  for (size_t i = 0; i < kept.data.size(); ++i)
    if (starts[i + 1] > starts[i] && kept.data[i]) slots.splice(slots.end(), slots, kept.slots[i]), ++counts_.hits;
  for (size_t i = 0; i < kept.data.size(); ++i) {
    if (starts[i + 1] <= starts[i] || kept.data[i]) continue;
    Slot& slot = slots.front();
    if (slot.kept) slot.kept->data[slot.matrix] = nullptr;
    else ++counts_.resident, counts_.bytes += kind.slot_bytes;
    slot.kept = &kept, slot.matrix = i;
    kept.data[i] = slot.data, kept.slots[i] = slots.begin();
    slots.splice(slots.end(), slots, slots.begin());
    ++counts_.misses;
    read_soon(stack.sources[i], static_cast<size_t>(stack.rows) * stack.row_bytes);
    for (int64_t begin = 0; begin < panels; begin += step) parts.push_back({i, begin, std::min(begin + step, panels)});
  }
}

void ExpertMemory::pack(size_t place, const Part& part) const {
  const Kept& kept = *stacks_[place];
  const Stack& stack = kept.stack;
  const int32_t* order = stack.row_orders[part.matrix];
  const std::byte* source = stack.sources[part.matrix];
  stack.pack(stack.stored, source, stack.row_bytes, order, stack.rows, stack.cols, const_cast<std::byte*>(kept.data[part.matrix]), part.begin, part.end);
  const auto first = static_cast<size_t>(order ? 0 : part.begin * kPanelRows);
  const auto end = static_cast<size_t>(order ? stack.rows : std::min(part.end * kPanelRows, stack.rows));
  drop_mapped(files_, source + first * stack.row_bytes, (end - first) * stack.row_bytes);
}

ExpertMemory::Counts ExpertMemory::counts() const {
  std::lock_guard<std::mutex> lock(counting_);
  return counts_;
}

}  // namespace weft
