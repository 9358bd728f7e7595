// json: tokenizer.json, the file format of the tokenizers library.
//
// Its truncation and padding settings are not read: weft never truncates or pads a text unless the caller asks for it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/json.h"
#include "text/load/base64.h"
#include "unicode/charsmap.h"
#include "text/pieces.h"
#include "text/tokenizer.h"

namespace weft::text {

namespace {

using json::Type;
using json::Value;

[[noreturn]] void unsupported(const std::string& what) {
  fail(ErrorKind::unsupported, "tokenizer.json", "weft does not support " + what);
}

constexpr size_t kMaxSteps = 16;         // normalisers, pre-tokenizers, parts of a template
constexpr size_t kMaxReplacement = 256;  // bytes that a normaliser may insert

std::string in_quotes(std::string_view text) { return std::string("'").append(text).append("'"); }

bool given(Value value) { return value && !value.is_null(); }

// Whether a member that could be null, false, 0 or "" asks for something.
bool asks(Value object, std::string_view key) {
  const Value value = object.find(key);
  if (!given(value)) return false;
  if (value.is(Type::boolean)) return value.boolean();
  if (value.is(Type::string)) return !value.string().empty();
  return value.number() != 0;
}

int32_t token_id(const Vocab& vocab, std::string_view token, const char* use) {
  const int32_t id = vocab.find(token);
  if (id == kNone)
    fail(ErrorKind::format, "tokenizer.json", std::string("the ") + use + " is not in the vocabulary: " + in_quotes(token));
  return id;
}

int32_t checked_id(const Vocab& vocab, int64_t id, const char* use) {
  if (!vocab.has(id))
    fail(ErrorKind::format, "tokenizer.json", std::string("the ") + use + " is not in the vocabulary: id " +
                                std::to_string(id));
  return static_cast<int32_t>(id);
}

// ---- vocabulary and added tokens

void read_vocab(Value model, Vocab& vocab) {
  const Value tokens = model.at("vocab");
  vocab.reserve(tokens.size() + 1024, tokens.size() * 9);
  for (const auto& [token, id] : tokens.members()) vocab.add(token, id.integer());
}

void read_added(Value root, Parts& parts) {
  const Value list = root.find("added_tokens");
  if (!given(list)) return;
  for (const Value item : list.items()) {
    AddedToken token;
    token.content = item.at("content").string();
    const int64_t id = item.at("id").integer();
    const int32_t known = parts.vocab.find(token.content);
    if (known == kNone) parts.vocab.add(token.content, id);
    else if (known != id)
      fail(ErrorKind::format, "tokenizer.json", "an added token has two ids: " + in_quotes(token.content) + ", " +
                                  std::to_string(known) + " and " + std::to_string(id));
    token.id = static_cast<int32_t>(id);
    token.special = item.boolean_or("special", false);
    token.single_word = item.boolean_or("single_word", false);
    token.lstrip = item.boolean_or("lstrip", false);
    token.rstrip = item.boolean_or("rstrip", false);
    token.normalized = item.boolean_or("normalized", !token.special);
    parts.added.push_back(std::move(token));
  }
}

// ---- normaliser

std::string_view inserted(Value text) {
  if (text.string().size() > kMaxReplacement) unsupported("a normaliser that inserts more than 256 bytes");
  return text.string();
}

void add_normaliser(Value value, NormaliserChain& chain) {
  if (!given(value)) return;
  if (chain.size() == kMaxSteps) unsupported("more than 16 normalisers");
  const std::string_view type = value.at("type").string();
  if (type == "Sequence") {
    for (const Value item : value.at("normalizers").items()) add_normaliser(item, chain);
  } else if (type == "BertNormalizer") {
    BertRules rules;
    rules.clean = value.boolean_or("clean_text", true);
    rules.space_cjk = value.boolean_or("handle_chinese_chars", true);
    rules.lower = value.boolean_or("lowercase", true);
    rules.strip_accents = value.boolean_or("strip_accents", rules.lower);
    chain.add(bert_normaliser(rules));
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    const bool compatible = type.size() == 4, composed = type.ends_with('C');
    chain.add(form_normaliser(compatible ? (composed ? Form::nfkc : Form::nfkd) : composed ? Form::nfc : Form::nfd));
  } else if (type == "Lowercase") {
    chain.add(lowercase_normaliser());
  } else if (type == "StripAccents") {
    chain.add(strip_accents_normaliser());
  } else if (type == "Strip") {
    chain.add(strip_normaliser(value.boolean_or("strip_left", true), value.boolean_or("strip_right", true)));
  } else if (type == "Prepend") {
    chain.add(prepend_normaliser(inserted(value.at("prepend"))));
  } else if (type == "Replace") {
    const Value pattern = value.at("pattern").find("String"), expression = value.at("pattern").find("Regex");
    const std::string_view content = inserted(value.at("content"));
    if (pattern && !pattern.string().empty()) chain.add(replace_normaliser(pattern.string(), content));
    else if (expression && expression.string() == " {2,}") chain.add(space_run_normaliser(content));
    else unsupported("a Replace normaliser with this pattern: " + in_quotes(expression ? expression.string() : ""));
  } else if (type == "Precompiled") {
    chain.add(precompiled_normaliser(Charsmap(from_base64(value.string_or("precompiled_charsmap", ""), "tokenizer.json"))));
  } else {
    unsupported("the normaliser " + in_quotes(type));
  }
}

// ---- pre-tokenizer

// Whether Metaspace puts its mark before a text: "always", "first" or "never".
std::string_view prefix_scheme(Value value) {
  const std::string_view scheme = value.string_or("prepend_scheme", "always");
  if (scheme != "always" && scheme != "first" && scheme != "never") unsupported("Metaspace with " + in_quotes(scheme));
  return value.boolean_or("add_prefix_space", true) ? scheme : "never";
}

std::unique_ptr<Splitter> metaspace_of(Value value) {
  if (value.string_or("replacement", kSpaceMark) != kSpaceMark) unsupported("Metaspace with another replacement");
  const std::string_view scheme = prefix_scheme(value);
  const Prefix prefix = scheme == "always" ? Prefix::always : scheme == "first" ? Prefix::first : Prefix::never;
  return split_marked_spaces(prefix, value.boolean_or("split", true));
}

std::unique_ptr<Splitter> split_of(Value value, bool behind_bytes) {
  const Value pattern = value.at("pattern");
  const Value expression = pattern.find("Regex");
  // Gemma's: its normaliser leaves no space to cut at.
  if (!expression && !behind_bytes && pattern.at("String").string() == " " && value.at("behavior").string() == "MergedWithPrevious")
    return split_behind_spaces();
  if (!expression) unsupported("a Split pre-tokenizer with a literal: " + in_quotes(pattern.at("String").string()));
  const std::string_view behaviour = value.at("behavior").string();
  const bool matches_only = behaviour == "Removed" && value.boolean_or("invert", false);
  if (behaviour != "Isolated" && !matches_only) unsupported("a Split with behaviour " + in_quotes(behaviour));
  return split_by_expression(expression.string(), {matches_only, behind_bytes});
}

std::unique_ptr<Splitter> punctuation_of(Value value) {
  const std::string_view behaviour = value.string_or("behavior", "Isolated");
  if (behaviour != "Isolated" && behaviour != "Contiguous") unsupported("Punctuation with behaviour " + in_quotes(behaviour));
  return split_punctuation(behaviour == "Isolated");
}

// Appends to the chain; true once the text is in the byte alphabet.
bool add_splitters(Value value, Splitters& chain, bool bytes = false) {
  if (!given(value)) return bytes;
  if (chain.size() == kMaxSteps) unsupported("more than 16 pre-tokenizers");
  const std::string_view type = value.at("type").string();
  if (type == "Sequence") {
    for (const Value item : value.at("pretokenizers").items()) bytes = add_splitters(item, chain, bytes);
    return bytes;
  }
  const bool individual = value.boolean_or("individual_digits", false);
  if (bytes) {  // Falcon cuts numbers there
    if (type == "Split") chain.push_back(split_of(value, true));
    else if (type == "Digits") chain.push_back(split_byte_digits(individual));
    else unsupported("this pre-tokenizer after ByteLevel: " + in_quotes(type));
    return true;
  }
  if (type == "ByteLevel") {
    const bool space = value.boolean_or("add_prefix_space", true), cuts = value.boolean_or("use_regex", true);
    if (cuts) chain.push_back(split_by(Pattern::gpt2));
    else if (space) chain.push_back(split_nothing());
    if (space) chain.back()->prepend_space = true;
    return true;
  }
  if (type == "BertPreTokenizer") chain.push_back(split_bert());
  else if (type == "Metaspace") chain.push_back(metaspace_of(value));
  else if (type == "Split") chain.push_back(split_of(value, false));
  else if (type == "Digits") chain.push_back(split_digits(individual));
  else if (type == "Whitespace") chain.push_back(split_words());
  else if (type == "WhitespaceSplit") chain.push_back(split_spaces());
  else if (type == "Punctuation") chain.push_back(punctuation_of(value));
  else unsupported("the pre-tokenizer " + in_quotes(type));
  return false;
}

// ---- post-processor

Template template_of(Value list, Value special_tokens, const Vocab& vocab) {
  Template parts;
  if (list.size() > kMaxSteps) unsupported("a template with more than 16 parts");
  for (const Value item : list.items()) {
    if (const Value special = item.find("SpecialToken")) {
      const auto type = static_cast<int32_t>(special.at("type_id").integer());
      for (const Value id : special_tokens.at(special.at("id").string()).at("ids").items())
        parts.push_back({Part::Kind::token, checked_id(vocab, id.integer(), "template's token"), type});
    } else {
      const Value sequence = item.at("Sequence");
      const Part::Kind kind = sequence.at("id").string() == "A" ? Part::Kind::first : Part::Kind::second;
      parts.push_back({kind, kNone, static_cast<int32_t>(sequence.at("type_id").integer())});
    }
  }
  return parts;
}

int32_t pair_id(Value pair, const Vocab& vocab) {  // ["[SEP]", 102]
  int32_t id = kNone;
  for (const Value item : pair.items())
    if (item.is(Type::integer)) id = checked_id(vocab, item.integer(), "post-processor's token");
  if (id == kNone) fail(ErrorKind::format, "tokenizer.json", "the post-processor names a token that has no id");
  return id;
}

// True when it decides where special tokens go.
bool read_processor(Value value, Parts& parts) {
  if (!given(value)) return false;
  const std::string_view type = value.at("type").string();
  const bool trims = type == "ByteLevel" || type == "RobertaProcessing";
  if (trims && value.boolean_or("trim_offsets", true)) parts.trim = {true, value.boolean_or("add_prefix_space", true)};
  if (type == "ByteLevel") return false;
  if (type == "Sequence") {
    int deciding = 0;
    for (const Value item : value.at("processors").items()) deciding += read_processor(item, parts);
    if (deciding > 1) unsupported("a sequence of post-processors that each add tokens");
    return deciding == 1;
  }
  using Kind = Part::Kind;
  if (type == "TemplateProcessing") {
    parts.single = template_of(value.at("single"), value.at("special_tokens"), parts.vocab);
    parts.pair = template_of(value.at("pair"), value.at("special_tokens"), parts.vocab);
  } else if (type == "BertProcessing") {
    const int32_t cls = pair_id(value.at("cls"), parts.vocab), sep = pair_id(value.at("sep"), parts.vocab);
    parts.single = {{Kind::token, cls, 0}, {Kind::first, kNone, 0}, {Kind::token, sep, 0}};
    parts.pair = parts.single;
    parts.pair.insert(parts.pair.end(), {{Kind::second, kNone, 1}, {Kind::token, sep, 1}});
  } else if (type == "RobertaProcessing") {
    const int32_t cls = pair_id(value.at("cls"), parts.vocab), sep = pair_id(value.at("sep"), parts.vocab);
    parts.single = {{Kind::token, cls, 0}, {Kind::first, kNone, 0}, {Kind::token, sep, 0}};
    parts.pair = parts.single;
    parts.pair.insert(parts.pair.end(), {{Kind::token, sep, 0}, {Kind::second, kNone, 0}, {Kind::token, sep, 0}});
  } else {
    unsupported("the post-processor " + in_quotes(type));
  }
  return true;
}

// ---- decoder

// One step of a Sequence of decoders for pieces; `fused`: the tokens are one text by now.
void add_decoder_step(Value item, bool fused, Decoder& decoder) {
  const std::string_view type = item.at("type").string();
  const bool first = decoder.kind == Decoding::joined;  // no step before it
  if (type == "Replace") {
    const Value from = item.at("pattern").find("String");
    if (!first || fused || !from || from.string() != kSpaceMark || item.at("content").string() != " ")
      unsupported("a Replace decoder other than U+2581 to a space, as the first decoder");
    decoder.spaces = true;
  } else if (type == "ByteFallback") {
    if (fused || (!first && decoder.kind != Decoding::pieces)) unsupported("a ByteFallback decoder at this position");
    decoder.spaces = !first && decoder.spaces;
    decoder.bytes = Decoder::Bytes::whole;
  } else {
    const int64_t start = item.integer_or("start", 0);
    const bool space = item.string_or("content", " ") == " " && item.integer_or("stop", 0) == 0;
    if (!fused || !space || start < 0 || (!first && decoder.kind != Decoding::pieces))
      unsupported("a Strip decoder that strips anything but spaces at the start of the text");
    decoder.spaces = !first && decoder.spaces;
    decoder.lead = Decoder::Lead::spaces;
    decoder.strip = static_cast<size_t>(start);
  }
  decoder.kind = Decoding::pieces;
}

Decoder decoder_of(Value value);

Decoder decoder_sequence(Value list) {
  Decoder decoder;
  decoder.kind = Decoding::joined;  // also what an empty sequence does
  bool fused = false;
  for (const Value item : list.items()) {
    const std::string_view type = item.at("type").string();
    if (type == "Replace" || type == "ByteFallback" || type == "Strip") {
      add_decoder_step(item, fused, decoder);
      continue;
    }
    const Decoder next = decoder_of(item);
    if (next.kind == Decoding::joined) {
      fused = true;
      continue;
    }
    if (fused || decoder.kind != Decoding::joined) unsupported("this sequence of decoders");
    decoder = next;
  }
  return decoder;
}

Decoder decoder_of(Value value) {
  Decoder decoder;
  if (!given(value)) return decoder;
  const std::string_view type = value.at("type").string();
  if (type == "ByteLevel") {
    decoder.kind = Decoding::bytes;
  } else if (type == "WordPiece") {
    decoder.kind = Decoding::word_piece;
    decoder.prefix = value.string_or("prefix", "##");
    decoder.cleanup = value.boolean_or("cleanup", true);
  } else if (type == "Metaspace") {
    if (value.string_or("replacement", kSpaceMark) != kSpaceMark) unsupported("Metaspace with another replacement");
    decoder.kind = Decoding::pieces;
    decoder.lead = prefix_scheme(value) == "never" ? Decoder::Lead::keep : Decoder::Lead::marks;
  } else if (type == "Fuse") {
    decoder.kind = Decoding::joined;
  } else if (type == "Sequence") {
    decoder = decoder_sequence(value.at("decoders"));
  } else {
    unsupported("the decoder " + in_quotes(type));
  }
  return decoder;
}

// ---- model

std::string_view model_type(Value model) {
  if (const Value type = model.find("type"); given(type)) return type.string();
  if (model.find("merges")) return "BPE";  // files written before the type was
  if (model.find("max_input_chars_per_word")) return "WordPiece";
  return model.at("vocab").is(Type::array) ? "Unigram" : "WordLevel";
}

std::unique_ptr<Model> word_piece(Value model, const Vocab& vocab) {
  const int64_t longest = model.integer_or("max_input_chars_per_word", 100);
  if (longest < 0) fail(ErrorKind::format, "tokenizer.json", "max_input_chars_per_word is negative");
  return std::make_unique<WordPiece>(vocab, model.string_or("continuing_subword_prefix", "##"),
                                     token_id(vocab, model.string_or("unk_token", "[UNK]"), "unknown token"),
                                     static_cast<size_t>(longest));
}

Merge merge_of(Value value) {
  if (value.is(Type::array)) {
    if (value.size() != 2) fail(ErrorKind::format, "tokenizer.json", "a merge must name two tokens");
    auto items = value.items();
    const std::string_view left = (*items.first).string();
    return {left, (*++items.first).string()};
  }
  const std::string_view text = value.string();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    fail(ErrorKind::format, "tokenizer.json", "a merge must name two tokens: " + in_quotes(text));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::vector<Merge> merges_of(Value model) {
  std::vector<Merge> merges;
  const Value list = model.at("merges");
  merges.reserve(list.size());
  for (const Value item : list.items()) merges.push_back(merge_of(item));
  return merges;
}

std::unique_ptr<Model> byte_bpe(Value model, const Vocab& vocab) {
  for (const char* option : {"byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (asks(model, option)) unsupported(std::string("BPE with ") + option);
  ByteBpe::Options options;
  options.whole_words = model.boolean_or("ignore_merges", false);
  options.fuse_unknown = model.boolean_or("fuse_unk", false);
  if (asks(model, "unk_token")) options.unknown = token_id(vocab, model.at("unk_token").string(), "unknown token");
  return std::make_unique<ByteBpe>(vocab, merges_of(model), options);
}

std::unique_ptr<Model> char_bpe(Value model, const Vocab& vocab) {
  for (const char* option : {"ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (asks(model, option)) unsupported(std::string("BPE of characters with ") + option);
  Fallback fallback;
  fallback.bytes = model.boolean_or("byte_fallback", false);
  fallback.byte_ids = byte_ids_of(vocab);
  fallback.fuse = model.boolean_or("fuse_unk", false);
  if (asks(model, "unk_token")) fallback.unknown = token_id(vocab, model.at("unk_token").string(), "unknown token");
  return std::make_unique<CharBpe>(vocab, merges_of(model), fallback);
}

// A score as the library's JSON reader rounds it: the digits as one integer, divided by a power of ten. It can be one
// unit in the last place off, which decides between paths of equal score.
double library_score(double score) {
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, std::fabs(score), std::chars_format::scientific).ptr;
  uint64_t whole = 0;
  int exponent = 0, decimals = 0;
  const char* p = digits;
  for (; p < end && *p != 'e'; ++p) {
    if (*p == '.') continue;
    whole = whole * 10 + static_cast<uint64_t>(*p - '0');
    decimals += p > digits;
  }
  if (p + 2 <= end) std::from_chars(p + (p[1] == '+' ? 2 : 1), end, exponent);
  exponent -= decimals;
  if (whole == 0 || exponent < -22 || exponent > 22) return score;  // beyond what both read alike
  double power = 1;
  for (int i = 0; i < std::abs(exponent); ++i) power *= 10;  // exact up to 10^22
  const double value = exponent < 0 ? static_cast<double>(whole) / power : static_cast<double>(whole) * power;
  return score < 0 ? -value : value;
}

void read_unigram_vocab(Value model, Vocab& vocab, std::vector<double>& scores) {
  const Value list = model.at("vocab");
  vocab.reserve(list.size() + 1024, list.size() * 9);
  scores.reserve(list.size());
  for (const Value item : list.items()) {  // ["piece", -3.5]
    if (item.size() != 2) fail(ErrorKind::format, "tokenizer.json", "a piece must be a text and a score");
    auto pair = item.items();
    vocab.add((*pair.first).string(), static_cast<int64_t>(scores.size()));
    scores.push_back(library_score((*++pair.first).number()));
  }
}

// Built behind the added tokens: the text of a special one must not give its id.
std::unique_ptr<Model> unigram(Value model, const Parts& parts, std::vector<double> scores) {
  std::vector<bool> usable(static_cast<size_t>(parts.vocab.size()));
  std::fill_n(usable.begin(), scores.size(), true);
  for (const AddedToken& token : parts.added)
    if (token.special) usable[static_cast<size_t>(token.id)] = false;
  Fallback fallback;
  fallback.bytes = model.boolean_or("byte_fallback", false);
  fallback.byte_ids = byte_ids_of(parts.vocab);
  if (const Value id = model.find("unk_id"); given(id))
    fallback.unknown = checked_id(parts.vocab, id.integer(), "unknown token");
  return std::make_unique<Unigram>(parts.vocab, usable, std::move(scores), fallback);
}

}  // namespace

std::unique_ptr<Tokenizer> from_json(std::string_view text, std::string_view where, const Around& around) {
  const json::Document document = json::parse(text, where);
  const Value root = document.root(), model = root.at("model");
  const std::string_view type = model_type(model);
  if (type != "BPE" && type != "WordPiece" && type != "Unigram") unsupported("the model " + in_quotes(type));
  Parts parts;
  const bool bytes = add_splitters(root.find("pre_tokenizer"), parts.splitters);
  if (bytes && type != "BPE") unsupported(std::string(type) + " with a ByteLevel pre-tokenizer");
  std::vector<double> scores;
  if (type == "Unigram") read_unigram_vocab(model, parts.vocab, scores);
  else read_vocab(model, parts.vocab);
  // These know the model's own tokens only, so they are built before the added ones join the vocabulary.
  if (type == "WordPiece") parts.model = word_piece(model, parts.vocab);
  if (type == "BPE") parts.model = bytes ? byte_bpe(model, parts.vocab) : char_bpe(model, parts.vocab);
  read_added(root, parts);
  if (type == "Unigram") parts.model = unigram(model, parts, std::move(scores));
  add_normaliser(root.find("normalizer"), parts.normaliser);
  read_processor(root.find("post_processor"), parts);
  if (around)
    surround(around->first.empty() ? kNone : token_id(parts.vocab, around->first, "bos token"),
             around->second.empty() ? kNone : token_id(parts.vocab, around->second, "eos token"), parts);
  parts.decoder = decoder_of(root.find("decoder"));
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
