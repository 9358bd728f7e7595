// model: turns one pre-token (a "word") into ids. A new kind of model is one more class here.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/merges.h"
#include "text/vocab.h"
#include "unicode/trace.h"

namespace weft::text {

using Ids = std::vector<int32_t>;

// Ids of words seen before. Direct mapped and of fixed size; the key is compared on every hit. Long words are not kept.
class WordCache {
 public:
  // Appends the ids of `word` to `out`: from the cache, or by calling fresh(), which appends them, and keeping them.
  template <class Fresh>
  void fetch(std::string_view word, Ids& out, Fresh&& fresh) {
    if (word.size() > kMaxKey) return fresh();
    const uint64_t hash = hash_of(word);
    Slot& slot = slots_[hash >> 20 & (kSlots - 1)];
    if (slot.hash == hash && slot.size == word.size() && std::memcmp(slot.key, word.data(), word.size()) == 0) {
      out.insert(out.end(), slot.ids, slot.ids + slot.count);
      return;
    }
    const size_t before = out.size();
    fresh();
    const size_t count = out.size() - before;
    if (count > kMaxIds) return;
    slot.hash = hash;
    slot.size = static_cast<uint8_t>(word.size());
    slot.count = static_cast<uint8_t>(count);
    std::memcpy(slot.key, word.data(), word.size());
    std::copy_n(out.data() + before, count, slot.ids);
  }

 private:
  static constexpr size_t kMaxKey = 22, kMaxIds = 8;  // so that a slot is one cache line
  static constexpr size_t kSlots = 1 << 13;

  struct alignas(64) Slot {
    uint64_t hash = 0;
    uint8_t size = 0xFF;  // free: no key is that long
    uint8_t count = 0;
    char key[kMaxKey] = {};
    int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Slot) == 64);
  std::vector<Slot> slots_ = std::vector<Slot>(kSlots);
};

// Where a token lies in its word, in bytes.
struct Extent {
  size_t start, end;
};

// The workspace of one thread while encoding; kept between calls so that encoding allocates nothing per word.
struct Workspace {
  struct PathStep {  // of the best path to a byte of the word
    double score;
    int32_t size, id;  // of the last piece on it
  };

  // Frees the memory that an unusually long text made it allocate.
  void trim() {
    constexpr size_t kKept = 1 << 16;
    if (merging.symbols.capacity() > kKept) std::vector<MergeSpace::Symbol>().swap(merging.symbols);
    if (merging.heap.capacity() > kKept) std::vector<MergeSpace::Candidate>().swap(merging.heap);
    if (merging.joined.capacity() > kKept) std::vector<int32_t>().swap(merging.joined);
    if (path.capacity() > kKept) std::vector<PathStep>().swap(path);
    for (std::string& text : cut)
      if (text.capacity() > kKept * 16) std::string().swap(text);
    for (std::string& text : normalised)
      if (text.capacity() > kKept * 16) std::string().swap(text);
    for (Trace& trace : cut_traces) trace.release();
    for (Trace& trace : normalised_traces) trace.release();
    if (origins.capacity() > kKept) std::vector<Origin>().swap(origins);
    if (extents.capacity() > kKept) std::vector<Extent>().swap(extents);
  }

  WordCache cache;
  MergeSpace merging;
  std::vector<PathStep> path;
  std::vector<std::string> cut;  // what the pre-tokenizers write, one string for each
  std::array<std::string, 2> normalised;
  // For offsets: where these texts come from, where the text does, and where a word's tokens lie in it.
  std::vector<Trace> cut_traces;
  std::array<Trace, 2> normalised_traces;
  std::vector<Origin> origins;
  std::vector<Extent> extents;
};

class Model {
 public:
  virtual ~Model() = default;
  // Appends the ids of `word`, which is not empty.
  virtual void encode(std::string_view word, Workspace& work, Ids& out) const = 0;
  // Writes to work.extents where each of the `count` ids that encode() gave for `word` lies in it.
  virtual void locate(std::string_view word, const int32_t* ids, size_t count, const Vocab& vocab,
                      Workspace& work) const = 0;
};

// Greedy: the longest token, then the longest continuation with the prefix, and so on; a word that cannot be finished,
// or is longer than max_chars characters, is one unknown token.
class WordPiece final : public Model {
 public:
  WordPiece(const Vocab& vocab, std::string_view prefix, int32_t unknown, size_t max_chars);
  void encode(std::string_view word, Workspace& work, Ids& out) const override;
  void locate(std::string_view word, const int32_t* ids, size_t count, const Vocab& vocab,
              Workspace& work) const override;

 private:
  void encode_fresh(std::string_view word, Ids& out) const;

  Trie trie_;
  uint32_t continuation_;
  int32_t unknown_;
  size_t max_chars_;
};

struct Merge {
  std::string_view left, right;  // as written in the file
};

// Throws Error(format) when one of the three tokens does not exist.
MergeTable::Pair pair_of(const Vocab& vocab, const Merge& merge, uint32_t rank, std::string& scratch);

// Byte-level byte-pair encoding: words are bytes, tokens are written in the byte alphabet.
class ByteBpe final : public Model {
 public:
  struct Options {
    bool whole_words = false;  // a word that is a token is that token, whatever the merges say ("ignore_merges")
    int32_t unknown = kNone;   // for bytes without a token; kNone leaves them out
    bool fuse_unknown = false;
  };
  ByteBpe(const Vocab& vocab, const std::vector<Merge>& merges, const Options& options);
  // As tiktoken does it: a word that is a token is that token, and any two neighbours that together are a token merge,
  // the lowest id first. Throws Error(format) when a byte has no token.
  explicit ByteBpe(const Vocab& vocab);
  void encode(std::string_view word, Workspace& work, Ids& out) const override;
  void locate(std::string_view word, const int32_t* ids, size_t count, const Vocab& vocab,
              Workspace& work) const override;

 private:
  void encode_fresh(std::string_view word, Workspace& work, Ids& out) const;
  size_t first_ids(std::string_view word, Ids& out) const;
  void read_bytes(const Vocab& vocab);
  void read_words(const Vocab& vocab);

  std::array<int32_t, 256> byte_ids_;
  MergeTable merges_;
  Vocab words_;  // bytes of every token, when whole_words
  Options options_;
};

// The printable alphabet of byte-level tokenizers: each byte stands as one character.
namespace byte_alphabet {
char32_t character(unsigned char byte);
int byte(char32_t character);                           // -1 when the character is not of the alphabet
bool decode(std::string_view token, std::string& out);  // appends the bytes; false (and nothing) when one is foreign
}  // namespace byte_alphabet

}  // namespace weft::text
