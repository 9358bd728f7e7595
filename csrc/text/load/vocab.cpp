// vocab: BERT's vocab.txt, and the tokenizer.ggml.* metadata of GGUF files.
#include "core/error.h"
#include "core/utf8.h"
#include "text/load/pieces.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

using Kind = Part::Kind;

constexpr size_t kMaxWordCharacters = 100;

void set_bert_parts(Parts& parts, int32_t unknown, int32_t cls, int32_t separator) {
  parts.splitters.push_back(split_bert());
  parts.model = std::make_unique<WordPiece>(parts.vocab, "##", unknown, kMaxWordCharacters);
  parts.decoder = {Decoding::word_piece, "##", true};
  parts.single = {{Kind::token, cls, 0}, {Kind::first, kNone, 0}, {Kind::token, separator, 0}};
  parts.pair = parts.single;
  parts.pair.insert(parts.pair.end(), {{Kind::second, kNone, 1}, {Kind::token, separator, 1}});
}

int32_t needed(const Vocab& vocab, int64_t id, const char* key) {
  if (!vocab.has(id))
    fail(ErrorKind::format, std::string("[gguf] tokenizer.ggml.") + key + " is missing or outside the vocabulary: " +
                                std::to_string(id));
  return static_cast<int32_t>(id);
}

// GGUF marks the start of a word where vocab.txt marks its continuation.
std::string word_piece_text(std::string_view token, bool normal) {
  if (token.starts_with(kSpaceMark)) return std::string(token.substr(kSpaceMark.size()));
  const bool bracketed = token.starts_with('[') && token.ends_with(']');
  return std::string(normal && !bracketed ? "##" : "").append(token);
}

void read_tokens(const GgufVocab& gguf, bool word_piece, Parts& parts) {
  size_t bytes = 0;
  for (const std::string_view token : gguf.tokens) bytes += token.size() + 2;
  parts.vocab.reserve(gguf.tokens.size(), bytes);
  if (!gguf.types.empty() && gguf.types.size() != gguf.tokens.size())
    fail(ErrorKind::format, "[gguf] tokenizer.ggml.token_type has another length than tokens: " +
                                std::to_string(gguf.types.size()) + " and " + std::to_string(gguf.tokens.size()));
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const std::string_view token = gguf.tokens[i];
    if (utf8::first_malformed(token) != token.size())
      fail(ErrorKind::format, "[gguf] a token is not UTF-8: token " + std::to_string(i));
    const int32_t type = gguf.types.empty() ? 1 : gguf.types[i];
    const bool added = type == kUnknownPiece || type == kControlPiece || type == kUserPiece;
    const auto id = static_cast<int64_t>(i);
    if (word_piece) parts.vocab.add(word_piece_text(token, !added), id);
    else parts.vocab.add(token, id);
    if (!added) continue;
    AddedToken extra;
    extra.content = parts.vocab.token(static_cast<int32_t>(i));
    extra.id = static_cast<int32_t>(i);
    extra.special = type != kUserPiece;
    parts.added.push_back(std::move(extra));
  }
}

struct Pre {
  bool whole_words = false;
  bool bos = false;  // where the file does not say
};

// How llama.cpp's name for a pre-tokenizer reads; the rules are those of the tokenizer.json that the models came with.
Pre read_pre(const std::string& name, Parts& parts) {
  Splitters& chain = parts.splitters;
  if (name == "gpt-2") {
    chain.push_back(split_by(Pattern::gpt2));
  } else if (name == "default" || name.empty()) {
    chain.push_back(split_marks());
    chain.push_back(split_by(Pattern::gpt2));
    chain.push_back(split_numbers(std::string_view::npos));
    chain.push_back(split_digit_triples());
  } else if (name == "smollm") {
    chain.push_back(split_digits(true));
    chain.push_back(split_by(Pattern::gpt2));
  } else if (name == "llama-bpe" || name == "llama3" || name == "llama-v3") {
    chain.push_back(split_by(Pattern::llama3));
    return {true, true};
  } else if (name == "qwen2") {
    parts.normaliser.add(form_normaliser(Form::nfc));
    chain.push_back(split_by(Pattern::qwen2));
  } else if (name == "qwen35") {
    parts.normaliser.add(form_normaliser(Form::nfc));
    chain.push_back(split_by(Pattern::qwen35));
  } else {
    fail(ErrorKind::unsupported, "[gguf] weft does not know tokenizer.ggml.pre: '" + name + "'");
  }
  return {};
}

std::vector<Merge> merges_of(const GgufVocab& gguf) {
  std::vector<Merge> merges;
  merges.reserve(gguf.merges.size());
  for (const std::string_view text : gguf.merges) {
    const size_t space = text.find(' ', 1);  // from 1: a token is never empty
    if (space == std::string_view::npos || space + 1 == text.size())
      fail(ErrorKind::format, "[gguf] a merge that is not of two tokens: '" + std::string(text) + "'");
    merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return merges;
}

void surround_as_told(const GgufVocab& gguf, bool bos_otherwise, Parts& parts) {
  const bool bos = gguf.add_bos == -1 ? bos_otherwise : gguf.add_bos == 1, eos = gguf.add_eos == 1;
  surround(bos ? needed(parts.vocab, gguf.bos, "bos_token_id") : kNone,
           eos ? needed(parts.vocab, gguf.eos, "eos_token_id") : kNone, parts);
}

void set_bpe_parts(const GgufVocab& gguf, Parts& parts) {
  const Pre pre = read_pre(gguf.pre, parts);
  ByteBpe::Options options;
  options.whole_words = pre.whole_words;
  parts.model = std::make_unique<ByteBpe>(parts.vocab, merges_of(gguf), options);
  parts.decoder.kind = Decoding::bytes;
  surround_as_told(gguf, pre.bos, parts);
}

// The model that llama.cpp calls "llama": SentencePiece's BPE. A space goes before each piece between control tokens.
void set_llama_parts(const GgufVocab& gguf, Parts& parts) {
  PieceVocab source;
  source.where = "[gguf]";
  source.tokens = gguf.tokens;
  source.types = gguf.types.empty() ? std::vector<int32_t>(gguf.tokens.size(), kNormalPiece) : gguf.types;
  source.scores = gguf.scores;
  for (const auto& [name, size] : {std::pair("scores", source.scores.size()), {"token_type", source.types.size()}})
    if (size != gguf.tokens.size())
      fail(ErrorKind::format, std::string("[gguf] tokenizer.ggml.") + name + " has another length than tokens: " +
                                  std::to_string(size) + " and " + std::to_string(gguf.tokens.size()));
  if (gguf.unknown != kNone && static_cast<size_t>(gguf.unknown) < gguf.tokens.size()) source.unknown = gguf.unknown;
  source.byte_fallback = true;
  source.rules = {gguf.add_space != 0, false, true};
  source.prefix_everywhere = true;
  set_piece_parts(source, false, {}, parts);
  surround_as_told(gguf, true, parts);
}

}  // namespace

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
    fail(ErrorKind::format, "[vocab.txt] malformed UTF-8: at byte " + std::to_string(bad));
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
    if (id == kNone) fail(ErrorKind::format, "[vocab.txt] a special token is not in the vocabulary: '" + token + "'");
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

std::unique_ptr<Tokenizer> from_gguf(const GgufVocab& gguf) {
  Parts parts;
  if (gguf.model == "bert") {
    read_tokens(gguf, true, parts);
    parts.normaliser.add(bert_normaliser({}));
    set_bert_parts(parts, needed(parts.vocab, gguf.unknown, "unknown_token_id"),
                   needed(parts.vocab, gguf.cls, "cls_token_id"),
                   needed(parts.vocab, gguf.separator, "seperator_token_id"));
  } else if (gguf.model == "gpt2") {
    read_tokens(gguf, false, parts);
    set_bpe_parts(gguf, parts);
  } else if (gguf.model == "llama") {
    set_llama_parts(gguf, parts);
  } else {
    fail(ErrorKind::unsupported, "[gguf] weft does not support tokenizer.ggml.model: '" + gguf.model + "'");
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
