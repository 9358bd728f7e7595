// bpe: short words by scanning for the lowest rank, long ones with a heap, so that any text costs O(n log n).
#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"
#include "text/model.h"

namespace weft::text {

namespace byte_alphabet {

namespace {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Tables {
  std::array<char32_t, 256> to{};
  std::array<int16_t, 0x144> from{};
  constexpr Tables() {
    for (int16_t& byte : from) byte = -1;
    char32_t next = 0x100;  // the others follow from U+0100 in order
    for (unsigned byte = 0; byte < 256; ++byte) {
      to[byte] = stands_for_itself(byte) ? byte : next++;
      from[to[byte]] = static_cast<int16_t>(byte);
    }
  }
};
constexpr Tables kTables;

}  // namespace

char32_t character(unsigned char byte) { return kTables.to[byte]; }
int byte(char32_t character) { return character < kTables.from.size() ? kTables.from[character] : -1; }

bool decode(std::string_view token, std::string& out) {
  const size_t before = out.size();
  for (const char *p = token.data(), *end = p + token.size(); p < end;) {
    const int value = byte(utf8::next(p));
    if (value < 0) return out.resize(before), false;
    out.push_back(static_cast<char>(value));
  }
  return true;
}

}  // namespace byte_alphabet

namespace {

constexpr size_t kShort = 48;  // below this a scan of the ranks beats a heap

bool comes_later(const Workspace::Candidate& a, const Workspace::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

uint64_t pair_hash(int32_t left, int32_t right) {
  return mix(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right)) >> 20;
}

}  // namespace

ByteBpe::ByteBpe(const Vocab& vocab, const std::vector<Merge>& merges, const Options& options) : options_(options) {
  std::string scratch;
  for (unsigned byte = 0; byte < 256; ++byte) {
    scratch.clear();
    utf8::append(scratch, byte_alphabet::character(static_cast<unsigned char>(byte)));
    byte_ids_[byte] = vocab.find(scratch);
  }
  size_t slots = 16;
  while (slots < merges.size() * 2) slots *= 2;
  pairs_.resize(slots);
  pair_mask_ = slots - 1;
  for (size_t i = 0; i < merges.size(); ++i) add_merge(vocab, merges[i], static_cast<uint32_t>(i), scratch);
  if (!options.whole_words) return;
  words_.reserve(static_cast<size_t>(vocab.size()), static_cast<size_t>(vocab.size()) * 8);
  for (int32_t id = 0; id < vocab.size(); ++id) {
    scratch.clear();
    if (vocab.has(id) && byte_alphabet::decode(vocab.token(id), scratch)) words_.add(scratch, id);
  }
}

void ByteBpe::add_merge(const Vocab& vocab, const Merge& merge, uint32_t rank, std::string& scratch) {
  scratch.assign(merge.left);
  scratch += merge.right;
  const Pair pair{vocab.find(merge.left), vocab.find(merge.right), rank, vocab.find(scratch)};
  if (pair.left == kNone || pair.right == kNone || pair.id == kNone)
    fail(ErrorKind::format, "[vocabulary] a merge of tokens that do not exist: '" + std::string(merge.left) +
                                "' and '" + std::string(merge.right) + "', merge " + std::to_string(rank));
  size_t slot = pair_hash(pair.left, pair.right) & pair_mask_;
  while (pairs_[slot].left != kNone && (pairs_[slot].left != pair.left || pairs_[slot].right != pair.right))
    slot = (slot + 1) & pair_mask_;
  pairs_[slot] = pair;  // of a repeated merge the last counts
}

const ByteBpe::Pair* ByteBpe::find(int32_t left, int32_t right) const {
  for (size_t slot = pair_hash(left, right) & pair_mask_; pairs_[slot].left != kNone; slot = (slot + 1) & pair_mask_)
    if (pairs_[slot].left == left && pairs_[slot].right == right) return &pairs_[slot];
  return nullptr;
}

void ByteBpe::encode(std::string_view word, Workspace& work, Ids& out) const {
  work.cache.fetch(word, out, [&] { encode_fresh(word, work, out); });
}

void ByteBpe::encode_fresh(std::string_view word, Workspace& work, Ids& out) const {
  if (options_.whole_words) {
    if (const int32_t id = words_.find(word); id != kNone) {
      out.push_back(id);
      return;
    }
  }
  const size_t before = out.size();
  const size_t count = first_ids(word, out);
  int32_t* ids = out.data() + before;
  out.resize(before + (count <= kShort ? merge_short(ids, count) : merge_long(ids, count, work)));
}

size_t ByteBpe::first_ids(std::string_view word, Ids& out) const {
  const size_t before = out.size();
  bool after_unknown = false;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id == kNone;
    if (!unknown) out.push_back(id);
    else if (options_.unknown != kNone && !(after_unknown && options_.fuse_unknown)) out.push_back(options_.unknown);
    after_unknown = unknown;
  }
  return out.size() - before;
}

size_t ByteBpe::merge_short(int32_t* ids, size_t count) const {
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

void ByteBpe::push(Workspace& work, int32_t position) const {
  const Workspace::Symbol& symbol = work.symbols[static_cast<size_t>(position)];
  if (symbol.after == kNone) return;
  const int32_t right = work.symbols[static_cast<size_t>(symbol.after)].id;
  const Pair* pair = find(symbol.id, right);
  if (pair == nullptr) return;
  work.heap.push_back({pair->rank, position, symbol.id, right});
  std::push_heap(work.heap.begin(), work.heap.end(), comes_later);
}

size_t ByteBpe::merge_long(int32_t* ids, size_t count, Workspace& work) const {
  auto& symbols = work.symbols;
  auto& heap = work.heap;
  symbols.resize(count);
  heap.clear();
  for (size_t i = 0; i < count; ++i) {
    const auto position = static_cast<int32_t>(i);
    symbols[i] = {ids[i], position - 1, i + 1 < count ? position + 1 : kNone};
  }
  for (size_t i = 0; i + 1 < count; ++i) push(work, static_cast<int32_t>(i));
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const Workspace::Candidate top = heap.back();
    heap.pop_back();
    Workspace::Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id != top.left || left.after == kNone) continue;
    Workspace::Symbol& right = symbols[static_cast<size_t>(left.after)];
    if (right.id != top.right) continue;
    left.id = find(top.left, top.right)->id;
    left.after = right.after;
    right.id = kNone;  // gone: no candidate names it any more
    if (left.after != kNone) symbols[static_cast<size_t>(left.after)].before = top.position;
    push(work, top.position);
    if (left.before != kNone) push(work, left.before);
  }
  size_t kept = 0;
  for (int32_t i = 0; i != kNone; i = symbols[static_cast<size_t>(i)].after)
    ids[kept++] = symbols[static_cast<size_t>(i)].id;
  return kept;
}

}  // namespace weft::text
