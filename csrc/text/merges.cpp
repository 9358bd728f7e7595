// merges: short words by scanning for the lowest rank, long ones with a heap, very long ones stretch by stretch, so that
// any text costs O(n log n), and a long one O(n) but for contrived tables.
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

void MergeTable::join(const int32_t* ids, size_t count, MergeSpace& space) const {
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
}

// Whether ids[0 .. first) and ids[first .. first + second), a token each by themselves, are the same two side by side.
bool MergeTable::stay_apart(const int32_t* ids, size_t first, size_t second) const {
  MergeSpace space;
  join(ids, first + second, space);
  const int32_t after = space.symbols[0].after;
  return after == static_cast<int32_t>(first) && space.symbols[first].after == kNone;
}

// Joins stretch by stretch, so that a very long word stays in the cache; false when that cannot be shown to be right.
//
// Let A end in the token a, let B start with the token b, and let joining the text of a and b alone give a and b. Then
// the tokens of AB are those of A and those of B. For suppose that a pair across their border is joined, and look at
// the first time. Until then A and B went their own ways, for the next pair of a part is the lowest of that part
// whatever happens elsewhere; within A nothing was joined across the start of a, nor within B across the end of b. So
// the text of a and b went the way it goes alone, and would be joined there too. The same shows that the first tokens
// of A are the tokens of their text. None of this asks anything of the ranks.
bool MergeTable::apply_stretches(const int32_t* ids, size_t count, MergeSpace& space) const {
  const auto& symbols = space.symbols;
  auto& joined = space.joined;
  joined.clear();
  size_t start = 0, before = 0;  // of the stretch, and of the last token that is settled
  struct {
    int32_t id, size;
  } expected{kNone, 0};  // what followed that token in the stretch before
  while (true) {
    const size_t size = std::min(kStretch, count - start);
    join(ids + start, size, space);
    const auto end_of = [&](int32_t i) {
      const int32_t after = symbols[static_cast<size_t>(i)].after;
      return after == kNone ? static_cast<int32_t>(size) : after;
    };
    const bool as_expected = symbols[0].id == expected.id && end_of(0) == expected.size;
    if (start != 0 && !as_expected && !stay_apart(ids + before, start - before, static_cast<size_t>(end_of(0))))
      return false;
    const size_t kept = joined.size();
    for (int32_t i = 0; i != kNone; i = symbols[static_cast<size_t>(i)].after)
      joined.push_back(symbols[static_cast<size_t>(i)].id);
    if (start + size == count) return true;
    const size_t found = joined.size() - kept;
    if (found < 2) return false;
    joined.resize(joined.size() - std::min(kAhead, 1 + found / 4));
    int32_t last = 0;
    for (size_t n = kept + 1; n < joined.size(); ++n) last = symbols[static_cast<size_t>(last)].after;
    const int32_t next = end_of(last);
    expected = {symbols[static_cast<size_t>(next)].id, end_of(next) - next};
    before = start + static_cast<size_t>(last);
    start += static_cast<size_t>(next);
  }
}

size_t MergeTable::apply_long(int32_t* ids, size_t count, MergeSpace& space) const {
  if (count > kStretch && apply_stretches(ids, count, space)) {
    std::copy(space.joined.begin(), space.joined.end(), ids);
    return space.joined.size();
  }
  join(ids, count, space);
  size_t kept = 0;
  for (int32_t i = 0; i != kNone; i = space.symbols[static_cast<size_t>(i)].after)
    ids[kept++] = space.symbols[static_cast<size_t>(i)].id;
  return kept;
}

}  // namespace weft::text
