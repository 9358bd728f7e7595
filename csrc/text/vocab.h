// vocab: tokens by id and ids by token, and the trie that finds the longest token at a place in a text.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace weft::text {

inline constexpr int32_t kNone = -1;
inline constexpr int64_t kMaxTokens = 4'194'304;
inline constexpr size_t kMaxTokenBytes = 65'535;

inline uint64_t load64(const char* p) {
  uint64_t value;
  std::memcpy(&value, p, 8);
  return value;
}

inline uint32_t load32(const char* p) {
  uint32_t value;
  std::memcpy(&value, p, 4);
  return value;
}

inline uint64_t mix(uint64_t value) {
  value *= 0x9E3779B97F4A7C15u;
  return value ^ value >> 29;
}

// For tables that compare keys after it: quality matters, secrecy does not (a crafted text can only slow a lookup by a
// bounded probe in a table that was filled from the vocabulary alone).
inline uint64_t hash_of(std::string_view key) {
  const char* p = key.data();
  const size_t n = key.size();
  uint64_t h = n * 0xC2B2AE3D27D4EB4Fu;
  if (n >= 8) {
    for (size_t i = 0; i + 8 < n; i += 8) h = mix(h ^ load64(p + i));
    return mix(mix(h ^ load64(p + n - 8)));
  }
  if (n >= 4) return mix(mix(h ^ load32(p) ^ static_cast<uint64_t>(load32(p + n - 4)) << 32));
  if (n == 0) return h;
  const auto byte = [p](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(p[i])); };
  return mix(mix(h ^ byte(0) ^ byte(n / 2) << 8 ^ byte(n - 1) << 16));
}

// Tokens with ids from 0; ids may have holes. A token and an id occur at most once.
class Vocab {
 public:
  void reserve(size_t tokens, size_t bytes);
  void add(std::string_view token, int64_t id);  // throws Error(format) for a repeated token or id, or an id out of range

  int32_t find(std::string_view token) const;  // kNone when there is no such token
  bool has(int64_t id) const { return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].known; }
  std::string_view token(int32_t id) const {
    const Entry& e = entries_[static_cast<size_t>(id)];
    return {bytes_.data() + e.start, e.size};
  }
  int64_t size() const { return static_cast<int64_t>(entries_.size()); }  // one past the largest id

 private:
  struct Entry {
    uint32_t start = 0;
    uint16_t size = 0;
    bool known = false;
  };
  struct Slot {
    uint32_t tag = 0;
    int32_t id = kNone;
  };
  void place(int32_t id);
  void grow();

  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing, a power of two, at most half full
  size_t count_ = 0;
};

// All edges in one hash table keyed by (node, byte).
class Trie {
 public:
  struct Match {
    size_t size = 0;
    int32_t value = kNone;
  };

  void add(std::string_view key, int32_t value);  // a repeated key keeps its first value
  uint32_t walk(std::string_view key) const;      // the node where `key` ends; kDead when nothing starts with it
  Match longest(std::string_view text, uint32_t from = 0) const;
  // Calls on_match(size, value) for every key that `text` starts with, the shortest first.
  template <class OnMatch>
  void prefixes(std::string_view text, OnMatch&& on_match) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node == 0) return;
      if (values_[node] != kNone) on_match(i + 1, values_[node]);
    }
  }
  bool starts(unsigned char byte) const { return first_[byte] != 0; }
  bool empty() const { return values_.size() == 1; }

  static constexpr uint32_t kDead = 0xFFFFFFFF;

 private:
  struct Edge {
    uint32_t key = kDead;  // node << 8 | byte
    uint32_t child = 0;
  };
  uint32_t child(uint32_t node, unsigned char byte) const;  // 0 when there is none
  uint32_t add_child(uint32_t node, unsigned char byte);
  void grow();

  uint32_t first_[256] = {};  // children of the root
  std::vector<int32_t> values_{kNone};
  std::vector<Edge> edges_{std::vector<Edge>(1024)};
  size_t count_ = 0;
};

}  // namespace weft::text
