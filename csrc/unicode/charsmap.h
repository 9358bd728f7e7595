// charsmap: SentencePiece's compiled table of character replacements, and the normalisers that use it.
//
// A table is u32 size of the trie, the trie (a double array of u32 units), then the replacements, each ended by a NUL.
// Every index is checked when it is followed.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/vocab.h"
#include "unicode/normalise.h"

namespace weft::text {

class Charsmap {
 public:
  Charsmap() = default;                       // replaces nothing
  explicit Charsmap(std::string_view table);  // throws Error(format); an empty table replaces nothing

  struct Match {
    size_t size;  // bytes replaced
    std::string_view text;
  };
  std::optional<Match> shortest(std::string_view text) const { return match(text, true); }
  std::optional<Match> longest(std::string_view text) const { return match(text, false); }

 private:
  std::optional<Match> match(std::string_view text, bool first) const;
  std::string_view replacement(uint32_t at) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

// As the tokenizers library applies the table: grapheme by grapheme, those of 6 bytes or more character by character.
std::unique_ptr<Normaliser> precompiled_normaliser(Charsmap map);

struct PieceRules {
  bool prefix = true;    // U+2581 before the text
  bool collapse = true;  // runs of spaces to one, none at the ends
  bool escape = true;    // spaces to U+2581
};

// As SentencePiece does it: the longest entry of the table at each place, but `kept` texts stay as they are.
std::unique_ptr<Normaliser> piece_normaliser(Charsmap map, const PieceRules& rules, Trie kept = {});

}  // namespace weft::text
