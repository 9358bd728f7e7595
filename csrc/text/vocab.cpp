// vocab: open addressing throughout; tokens lie one after another in one string.
#include "text/vocab.h"

#include <limits>

#include "core/error.h"

namespace weft::text {

void Vocab::reserve(size_t tokens, size_t bytes) {
  entries_.reserve(tokens);
  bytes_.reserve(bytes);
  size_t slots = 16;
  while (slots < tokens * 2) slots *= 2;
  if (slots > slots_.size() && count_ == 0) slots_.assign(slots, Slot{});
}

void Vocab::add(std::string_view token, int64_t id) {
  const auto wrong = [&](const char* what) {
    fail(ErrorKind::format, "vocabulary", std::string(what) + ": '" + std::string(token.substr(0, 64)) + "', id " +
                                std::to_string(id));
  };
  if (id < 0 || id >= kMaxTokens) wrong("an id is out of range");
  if (token.size() > kMaxTokenBytes) wrong("a token is too long");
  if (bytes_.size() + token.size() > std::numeric_limits<uint32_t>::max()) wrong("the tokens are too long in total");
  if (has(id)) wrong("an id is used twice");
  if (find(token) != kNone) wrong("a token occurs twice");
  if (id >= size()) entries_.resize(static_cast<size_t>(id) + 1);
  entries_[static_cast<size_t>(id)] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint16_t>(token.size()), true};
  bytes_ += token;
  if ((count_ + 1) * 2 > slots_.size()) grow();
  place(static_cast<int32_t>(id));
  ++count_;
}

void Vocab::place(int32_t id) {
  const uint64_t hash = hash_of(token(id));
  size_t slot = hash & (slots_.size() - 1);
  while (slots_[slot].id != kNone) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = {static_cast<uint32_t>(hash >> 32), id};
}

void Vocab::grow() {
  std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
  old.swap(slots_);
  for (const Slot& slot : old)
    if (slot.id != kNone) place(slot.id);
}

int32_t Vocab::find(std::string_view wanted) const {
  if (slots_.empty()) return kNone;
  const uint64_t hash = hash_of(wanted);
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash & mask; slots_[slot].id != kNone; slot = (slot + 1) & mask)
    if (slots_[slot].tag == hash >> 32 && token(slots_[slot].id) == wanted) return slots_[slot].id;
  return kNone;
}

uint32_t Trie::child(uint32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  const uint32_t key = node << 8 | byte;
  const size_t mask = edges_.size() - 1;
  for (size_t slot = mix(key) >> 20 & mask; edges_[slot].key != kDead; slot = (slot + 1) & mask)
    if (edges_[slot].key == key) return edges_[slot].child;
  return 0;
}

uint32_t Trie::add_child(uint32_t node, unsigned char byte) {
  const auto fresh = static_cast<uint32_t>(values_.size());
  if (fresh >= 1u << 24) fail(ErrorKind::format, "vocabulary", "the tokens are too long in total: over 2^24 trie nodes");
  values_.push_back(kNone);
  if (node == 0) return first_[byte] = fresh;
  if ((count_ + 1) * 2 > edges_.size()) grow();
  const size_t mask = edges_.size() - 1;
  const uint32_t key = node << 8 | byte;
  size_t slot = mix(key) >> 20 & mask;
  while (edges_[slot].key != kDead) slot = (slot + 1) & mask;
  edges_[slot] = {key, fresh};
  ++count_;
  return fresh;
}

void Trie::grow() {
  std::vector<Edge> old(edges_.size() * 2);
  old.swap(edges_);
  const size_t mask = edges_.size() - 1;
  for (const Edge& edge : old) {
    if (edge.key == kDead) continue;
    size_t slot = mix(edge.key) >> 20 & mask;
    while (edges_[slot].key != kDead) slot = (slot + 1) & mask;
    edges_[slot] = edge;
  }
}

void Trie::add(std::string_view key, int32_t value) {
  uint32_t node = 0;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const uint32_t next = child(node, byte);
    node = next != 0 ? next : add_child(node, byte);
  }
  if (values_[node] == kNone) values_[node] = value;
}

uint32_t Trie::walk(std::string_view key) const {
  uint32_t node = 0;
  for (const char c : key) {
    node = child(node, static_cast<unsigned char>(c));
    if (node == 0) return kDead;
  }
  return node;
}

Trie::Match Trie::longest(std::string_view text, uint32_t from) const {
  Match best;
  if (from == kDead) return best;
  uint32_t node = from;
  for (size_t i = 0; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == 0) break;
    if (values_[node] != kNone) best = {i + 1, values_[node]};
  }
  return best;
}

}  // namespace weft::text
