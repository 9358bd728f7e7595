// pieces: what the readers of SentencePiece's models share.
#pragma once
#include "unicode/charsmap.h"
#include "text/tokenizer.h"

namespace weft::text {

// Types of pieces, in SentencePiece's files and in GGUF alike.
inline constexpr int32_t kNormalPiece = 1, kUnknownPiece = 2, kControlPiece = 3, kUserPiece = 4, kUnusedPiece = 5,
                         kBytePiece = 6;

struct PieceVocab {
  std::string_view where;  // for messages
  std::vector<std::string_view> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  int32_t unknown = kNone;  // kNone: the piece of that type
  bool byte_fallback = false;
  bool user_in_pieces = false;  // user-defined pieces are found as SentencePiece does, not before it sees the text
  bool print_unknown = false;  // decode it as SentencePiece does, instead of leaving it out
  bool prefix_everywhere = false;  // the space before a text goes before each piece between added tokens too
  PieceRules rules;
};

// WordPiece behind BERT's splitter, with its two special tokens.
void set_bert_parts(Parts& parts, int32_t unknown, int32_t cls, int32_t separator);

void set_piece_parts(const PieceVocab& source, bool unigram, std::string_view charsmap, Parts& parts);

}  // namespace weft::text
