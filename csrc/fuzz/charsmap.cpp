// A table of character replacements is refused with an Error, or normalises any text to text, for tokenizer.json and for
// SentencePiece models alike. The input: sizes of table and pieces, rules, the table, then a text.
#include "fuzz/tokenizing.h"
#include "text/pieces.h"
#include "unicode/charsmap.h"

using namespace weft;

namespace {

std::unique_ptr<text::Tokenizer> make(std::unique_ptr<text::Normaliser> normaliser, std::string_view pieces) {
  text::Parts parts;
  std::vector<double> scores;
  for (const std::string_view piece : {std::string_view("<unk>"), std::string_view("a"), text::kSpaceMark, pieces}) {
    if (parts.vocab.find(piece) != text::kNone) continue;
    parts.vocab.add(piece, static_cast<int64_t>(scores.size()));
    scores.push_back(-static_cast<double>(scores.size()));
  }
  text::Fallback fallback;
  fallback.unknown = 0;
  fallback.byte_ids = text::byte_ids_of(parts.vocab);
  parts.normaliser.add(std::move(normaliser));
  parts.decoder.kind = text::Decoding::pieces;
  parts.model =
      std::make_unique<text::Unigram>(parts.vocab, std::vector<bool>(scores.size(), true), scores, fallback);
  return std::make_unique<text::Tokenizer>(std::move(parts));
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  const auto table_size = fields.number<uint16_t>();
  const uint8_t rules = fields.byte();
  const std::string piece = fuzz::as_text(fields.text(fields.byte() % 16));
  const std::string_view table = fields.text(table_size);
  fuzz::accepted([&] {
    const text::Charsmap map(table);
    const auto whole = make(text::precompiled_normaliser(map), piece);
    fuzz::check_tokenizer(*whole, fields.rest());
    const text::PieceRules chosen{(rules & 1) != 0, (rules & 2) != 0, (rules & 4) != 0};
    fuzz::check_tokenizer(*make(text::piece_normaliser(map, chosen), piece), fields.rest());
  });
  return 0;
}
