// gguf: the tokenizer.ggml.* metadata of GGUF files.
#include "text/load/gguf.h"

#include "core/error.h"
#include "core/utf8.h"
#include "text/load/pieces.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

int32_t needed(const Vocab& vocab, int64_t id, const char* key) {
  if (!vocab.has(id))
    fail(ErrorKind::format, "gguf", std::string("tokenizer.ggml.") + key + " is missing or outside the vocabulary: " +
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
    fail(ErrorKind::format, "gguf", "tokenizer.ggml.token_type has " + std::to_string(gguf.types.size()) +
                                        " entries for " + std::to_string(gguf.tokens.size()) + " tokens");
  for (size_t i = 0; i < gguf.tokens.size(); ++i) {
    const std::string_view token = gguf.tokens[i];
    if (utf8::first_malformed(token) != token.size())
      fail(ErrorKind::format, "gguf", "a token is not UTF-8: id " + std::to_string(i));
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

std::vector<Merge> merges_of(const GgufVocab& gguf) {
  std::vector<Merge> merges;
  merges.reserve(gguf.merges.size());
  for (const std::string_view text : gguf.merges) {
    const size_t space = text.find(' ', 1);  // from 1: a token is never empty
    if (space == std::string_view::npos || space + 1 == text.size())
      fail(ErrorKind::format, "gguf", "a merge must name two tokens: '" + std::string(text) + "'");
    merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return merges;
}

void surround_as_given(const GgufVocab& gguf, bool bos_otherwise, bool eos_otherwise, Parts& parts) {
  const bool bos = gguf.add_bos == -1 ? bos_otherwise : gguf.add_bos == 1;
  const bool eos = gguf.add_eos == -1 ? eos_otherwise : gguf.add_eos == 1;
  surround(bos ? needed(parts.vocab, gguf.bos, "bos_token_id") : kNone,
           eos ? needed(parts.vocab, gguf.eos, "eos_token_id") : kNone, parts);
}

void set_bpe_parts(const GgufVocab& gguf, Parts& parts) {
  const Pre pre = read_pre(gguf.pre, parts);
  ByteBpe::Options options;
  options.whole_words = pre.whole_words;
  parts.model = std::make_unique<ByteBpe>(parts.vocab, merges_of(gguf), options);
  parts.decoder.kind = Decoding::bytes;
  surround_as_given(gguf, pre.bos, false, parts);
}

PieceVocab pieces_of(const GgufVocab& gguf) {
  PieceVocab source;
  source.where = "gguf";
  source.tokens = gguf.tokens;
  source.types = gguf.types.empty() ? std::vector<int32_t>(gguf.tokens.size(), kNormalPiece) : gguf.types;
  source.scores = gguf.scores;
  for (const auto& [name, size] : {std::pair("scores", source.scores.size()), {"token_type", source.types.size()}})
    if (size != gguf.tokens.size())
      fail(ErrorKind::format, "gguf", std::string("tokenizer.ggml.") + name + " has " + std::to_string(size) +
                                          " entries for " + std::to_string(gguf.tokens.size()) + " tokens");
  if (gguf.unknown != kNone && static_cast<size_t>(gguf.unknown) < gguf.tokens.size()) source.unknown = gguf.unknown;
  return source;
}

// The model that llama.cpp calls "llama": SentencePiece's BPE. A space goes before each piece between control tokens.
void set_llama_parts(const GgufVocab& gguf, Parts& parts) {
  PieceVocab source = pieces_of(gguf);
  source.byte_fallback = true;
  source.rules = {gguf.add_space != 0, false, true};
  source.prefix_everywhere = true;
  set_piece_parts(source, false, {}, parts);
  surround_as_given(gguf, true, false, parts);
}

// "t5": SentencePiece's Unigram, of T5 and XLM-R.
void set_unigram_parts(const GgufVocab& gguf, Parts& parts) {
  PieceVocab source = pieces_of(gguf);
  source.rules = {gguf.add_space == 1, gguf.collapse == 1, true};
  set_piece_parts(source, true, gguf.charsmap, parts);
  surround_as_given(gguf, false, true, parts);
}

// "gemma4": byte-pair encoding of characters by merges, with U+2581 for spaces.
void set_gemma_parts(const GgufVocab& gguf, Parts& parts) {
  read_tokens(gguf, false, parts);
  Fallback fallback;
  fallback.bytes = true;
  fallback.byte_ids = byte_ids_of(parts.vocab);
  if (gguf.unknown != kNone) fallback.unknown = needed(parts.vocab, gguf.unknown, "unknown_token_id");
  parts.model = std::make_unique<CharBpe>(parts.vocab, merges_of(gguf), fallback);
  parts.normaliser.add(replace_normaliser(" ", kSpaceMark));
  parts.decoder.kind = Decoding::pieces;
  parts.decoder.bytes = Decoder::Bytes::whole;
  surround_as_given(gguf, true, false, parts);
}

}  // namespace

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
  } else if (gguf.model == "t5") {
    set_unigram_parts(gguf, parts);
  } else if (gguf.model == "gemma4") {
    set_gemma_parts(gguf, parts);
  } else {
    fail(ErrorKind::unsupported, "gguf", "weft does not support tokenizer.ggml.model: '" + gguf.model + "'");
  }
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
