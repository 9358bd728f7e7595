// merges: the table of pairs that byte-pair encoding joins, and the joining itself.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/vocab.h"

namespace weft::text {

// Workspace for joining a long word; kept between calls.
struct MergeSpace {
  struct Symbol {
    int32_t id;
    int32_t before, after;  // neighbours; kNone at the ends
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;
    int32_t left, right;  // ids of the pair when it was found: another pair there now makes it stale
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
  std::vector<int32_t> joined;
};

// The lowest-ranked pair is joined first, the leftmost of equals first.
class MergeTable {
 public:
  struct Pair {
    int32_t left = kNone, right = kNone;
    uint32_t rank = 0;
    int32_t id = kNone;
  };

  void reserve(size_t pairs);  // before the first add(), and never less than what is added
  void add(const Pair& pair);  // the last of a repeated pair wins
  // Joins ids[0 .. count) in place and returns how many are left.
  size_t apply(int32_t* ids, size_t count, MergeSpace& space) const;

 private:
  static constexpr uint32_t kNoRank = 0xFFFFFFFF;
  static constexpr size_t kShort = 48;      // up to this a scan of the ranks beats a heap
  static constexpr size_t kStretch = 2048;  // symbols of a very long word at a time: the heap stays in the cache
  static constexpr size_t kAhead = 32;      // tokens at its end that the next stretch may change; fewer where they are long

  const Pair* find(int32_t left, int32_t right) const;
  size_t apply_short(int32_t* ids, size_t count) const;
  size_t apply_long(int32_t* ids, size_t count, MergeSpace& space) const;
  bool apply_stretches(const int32_t* ids, size_t count, MergeSpace& space) const;
  void join(const int32_t* ids, size_t count, MergeSpace& space) const;  // leaves a list of tokens in space.symbols
  bool stay_apart(const int32_t* ids, size_t first, size_t second) const;
  bool note(MergeSpace& space, int32_t position) const;  // puts the pair there last, where there is one
  void push(MergeSpace& space, int32_t position) const;

  std::vector<Pair> pairs_{std::vector<Pair>(16)};  // open addressing by (left, right), at most half full
  size_t mask_ = 15;
};

}  // namespace weft::text
