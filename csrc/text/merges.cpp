// merges: short words by scanning for the lowest rank, long ones with a heap, so that any text costs O(n log n).
#include "text/merges.h"

#include <algorithm>

namespace weft::text {

namespace {

bool comes_later(const MergeSpace::Candidate& a, const MergeSpace::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

uint64_t pair_hash(int32_t left, int32_t right) {
  return mix(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right)) >> 20;
}

}  // namespace

void MergeTable::reserve(size_t pairs) {
  size_t slots = 16;
  while (slots < pairs * 2) slots *= 2;
  pairs_.assign(slots, Pair{});
  mask_ = slots - 1;
}

void MergeTable::add(const Pair& pair) {
  size_t slot = pair_hash(pair.left, pair.right) & mask_;
  while (pairs_[slot].left != kNone && (pairs_[slot].left != pair.left || pairs_[slot].right != pair.right))
    slot = (slot + 1) & mask_;
  pairs_[slot] = pair;
}

const MergeTable::Pair* MergeTable::find(int32_t left, int32_t right) const {
  for (size_t slot = pair_hash(left, right) & mask_; pairs_[slot].left != kNone; slot = (slot + 1) & mask_)
    if (pairs_[slot].left == left && pairs_[slot].right == right) return &pairs_[slot];
  return nullptr;
}

size_t MergeTable::apply(int32_t* ids, size_t count, MergeSpace& space) const {
  return count <= kShort ? apply_short(ids, count) : apply_long(ids, count, space);
}

size_t MergeTable::apply_short(int32_t* ids, size_t count) const {
  const Pair* found[kShort];  // the merge of ids[i] and ids[i + 1]
  for (size_t i = 0; i + 1 < count; ++i) found[i] = find(ids[i], ids[i + 1]);
  while (count > 1) {
    uint32_t lowest = kNoRank;
    size_t at = 0;
    for (size_t i = 0; i + 1 < count; ++i)
      if (found[i] != nullptr && found[i]->rank < lowest) lowest = found[i]->rank, at = i;
    if (lowest == kNoRank) break;
    ids[at] = found[at]->id;
    --count;
    std::copy(ids + at + 2, ids + count + 1, ids + at + 1);
    if (at + 1 < count) {
      std::copy(found + at + 2, found + count, found + at + 1);
      found[at] = find(ids[at], ids[at + 1]);
    }
    if (at > 0) found[at - 1] = find(ids[at - 1], ids[at]);
  }
  return count;
}

bool MergeTable::note(MergeSpace& space, int32_t position) const {
  const MergeSpace::Symbol& symbol = space.symbols[static_cast<size_t>(position)];
  if (symbol.after == kNone) return false;
  const int32_t right = space.symbols[static_cast<size_t>(symbol.after)].id;
  const Pair* pair = find(symbol.id, right);
  if (pair == nullptr) return false;
  space.heap.push_back({pair->rank, position, symbol.id, right});
  return true;
}

void MergeTable::push(MergeSpace& space, int32_t position) const {
  if (note(space, position)) std::push_heap(space.heap.begin(), space.heap.end(), comes_later);
}

size_t MergeTable::apply_long(int32_t* ids, size_t count, MergeSpace& space) const {
  auto& symbols = space.symbols;
  auto& heap = space.heap;
  symbols.resize(count);
  heap.clear();
  for (size_t i = 0; i < count; ++i) {
    const auto position = static_cast<int32_t>(i);
    symbols[i] = {ids[i], position - 1, i + 1 < count ? position + 1 : kNone};
  }
  for (size_t i = 0; i + 1 < count; ++i) note(space, static_cast<int32_t>(i));
  std::make_heap(heap.begin(), heap.end(), comes_later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const MergeSpace::Candidate top = heap.back();
    heap.pop_back();
    MergeSpace::Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id != top.left || left.after == kNone) continue;
    MergeSpace::Symbol& right = symbols[static_cast<size_t>(left.after)];
    if (right.id != top.right) continue;
    left.id = find(top.left, top.right)->id;
    left.after = right.after;
    right.id = kNone;  // gone: no candidate names it any more
    if (left.after != kNone) symbols[static_cast<size_t>(left.after)].before = top.position;
    push(space, top.position);
    if (left.before != kNone) push(space, left.before);
  }
  size_t kept = 0;
  for (int32_t i = 0; i != kNone; i = symbols[static_cast<size_t>(i)].after)
    ids[kept++] = symbols[static_cast<size_t>(i)].id;
  return kept;
}

}  // namespace weft::text
