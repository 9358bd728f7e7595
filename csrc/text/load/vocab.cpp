// vocab: BERT's vocab.txt, and what readers of several kinds of file share.
#include "core/error.h"
#include "core/utf8.h"
#include "text/load/pieces.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

using Kind = Part::Kind;

constexpr size_t kMaxWordCharacters = 100;

}  // namespace

void set_bert_parts(Parts& parts, int32_t unknown, int32_t cls, int32_t separator) {
  parts.splitters.push_back(split_bert());
  parts.model = std::make_unique<WordPiece>(parts.vocab, "##", unknown, kMaxWordCharacters);
  parts.decoder = {Decoding::word_piece, "##", true};
  parts.single = {{Kind::token, cls, 0}, {Kind::first, kNone, 0}, {Kind::token, separator, 0}};
  parts.pair = parts.single;
  parts.pair.insert(parts.pair.end(), {{Kind::second, kNone, 1}, {Kind::token, separator, 1}});
}

void surround(int32_t bos, int32_t eos, Parts& parts) {
  parts.single.clear();
  parts.pair.clear();
  const auto add = [](Template& parts, int32_t id, int32_t type) {
    if (id != kNone) parts.push_back({Kind::token, id, type});
  };
  for (const auto& [kind, type] : {std::pair(Kind::first, 0), {Kind::second, 1}}) {
    add(parts.pair, bos, type);
    parts.pair.push_back({kind, kNone, type});
    add(parts.pair, eos, type);
    if (type == 0) parts.single = parts.pair;
  }
}

std::unique_ptr<Tokenizer> from_vocab_file(std::string_view text, const VocabFileOptions& options) {
  if (const size_t bad = utf8::first_malformed(text); bad != text.size())
    fail(ErrorKind::format, "vocab.txt", "malformed UTF-8: at byte " + std::to_string(bad));
  Parts parts;
  parts.vocab.reserve(text.size() / 8, text.size());
  for (int64_t id = 0; !text.empty(); ++id) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    parts.vocab.add(line, id);
  }
  const auto id_of = [&](const std::string& token) {
    const int32_t id = parts.vocab.find(token);
    if (id == kNone) fail(ErrorKind::format, "vocab.txt", "a special token is not in the vocabulary: '" + token + "'");
    return id;
  };
  for (const std::string& token : options.special) {
    AddedToken added;
    added.content = token;
    added.id = id_of(token);
    added.special = true;
    parts.added.push_back(std::move(added));
  }
  parts.normaliser.add(bert_normaliser(options.rules));
  set_bert_parts(parts, id_of(options.unknown), id_of(options.first), id_of(options.separator));
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
