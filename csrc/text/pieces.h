// pieces: the two SentencePiece models. Words are characters, U+2581 stands for a space, and a character without a
// piece is its bytes (`<0x0A>`) or unknown.
//
// A text is not cut into words before them. They cut it themselves where no piece can lie across: before a U+2581 whose
// left neighbour precedes a U+2581 in no piece. The ids stay the same, and those of a word can be cached.
#pragma once
#include <bitset>
#include <unordered_map>
#include <unordered_set>

#include "text/model.h"

namespace weft::text {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// The byte that a token such as <0x0A> stands for; -1 for other tokens.
int byte_of_token(std::string_view token);

using ByteIds = std::array<int32_t, 256>;
ByteIds byte_ids_of(const Vocab& vocab);  // kNone where there is no such token

class WordCuts {
 public:
  void note(std::string_view piece);                // that a piece exists
  void allow(bool allowed) { allowed_ = allowed; }  // only where U+2581 itself is a piece: unknowns never lie across it

  // Calls word(part) for the parts of `text` in order.
  template <class OnWord>
  void each(std::string_view text, OnWord&& on_word) const {
    size_t start = 0;
    while (start < text.size()) {
      const size_t end = allowed_ ? next(text, start) : text.size();
      on_word(text.substr(start, end - start));
      start = end;
    }
  }

 private:
  size_t next(std::string_view text, size_t from) const;

  bool allowed_ = false;
  std::bitset<128> ascii_;  // characters that stand before a U+2581 in some piece
  std::unordered_set<char32_t> others_;
};

// How a character without a piece is encoded.
struct Fallback {
  bool bytes = false;
  ByteIds byte_ids{};
  int32_t unknown = kNone;  // kNone leaves it out
  bool fuse = true;         // neighbouring unknown characters are one token

  bool append_bytes(std::string_view character, Ids& out) const;  // false when a byte has no token
};

// Byte-pair encoding of characters.
class CharBpe final : public Model {
 public:
  // Merges by rank, as tokenizer.json lists them.
  CharBpe(const Vocab& vocab, const std::vector<Merge>& merges, const Fallback& fallback);
  // Two neighbours merge when together they are a piece, the highest score first. `mergeable` and `scores` by id.
  CharBpe(const Vocab& vocab, const std::vector<bool>& mergeable, const std::vector<float>& scores,
          const Fallback& fallback);
  void encode(std::string_view text, Workspace& work, Ids& out) const override;
  void locate(std::string_view text, const int32_t* ids, size_t count, const Vocab& vocab,
              Workspace& work) const override;

 private:
  bool missing(std::string_view rest) const;  // the first character is not a piece
  void add_splits(const Vocab& vocab, const std::vector<bool>& mergeable, int32_t piece, uint32_t rank,
                  std::vector<MergeTable::Pair>& pairs);
  int32_t symbol_of(const Vocab& vocab, const std::vector<bool>& mergeable, std::string_view text);
  void encode_word(std::string_view word, Workspace& work, Ids& out) const;
  void append_symbols(std::string_view word, Ids& out) const;
  void resolve(size_t before, Ids& out) const;

  std::unordered_map<char32_t, int32_t> characters_;
  std::array<int32_t, 128> ascii_;
  MergeTable merges_;
  WordCuts cuts_;
  Fallback fallback_;
  bool scored_ = false;
  int32_t first_virtual_ = kNone;          // ids from here on are characters that occur in pieces but are none
  std::vector<std::string> virtual_text_;  // their text
};

// The path of pieces with the highest sum of scores; a character without a piece costs the lowest score and 10 more.
class Unigram final : public Model {
 public:
  // `usable`: the ids a text can give; a special token's text is text.
  Unigram(const Vocab& vocab, const std::vector<bool>& usable, std::vector<double> scores, const Fallback& fallback);
  void encode(std::string_view text, Workspace& work, Ids& out) const override;
  void locate(std::string_view text, const int32_t* ids, size_t count, const Vocab& vocab,
              Workspace& work) const override;

 private:
  void encode_word(std::string_view word, Workspace& work, Ids& out) const;
  template <class OnPiece>
  void walk_back(std::string_view word, Workspace& work, OnPiece&& on_piece) const;
  void find_path(std::string_view word, Workspace& work) const;

  Trie trie_;
  std::vector<double> scores_;
  double unknown_score_;
  WordCuts cuts_;
  Fallback fallback_;
};

}  // namespace weft::text
