// load_json: tokenizer.json, the file format of the tokenizers library.
//
// Its truncation and padding settings are not read: weft neither cuts nor pads a text behind the caller's back.
#include "core/error.h"
#include "core/json.h"
#include "text/tokenizer.h"

namespace weft::text {

namespace {

using json::Type;
using json::Value;

[[noreturn]] void unsupported(const std::string& what) {
  fail(ErrorKind::unsupported, "[tokenizer.json] weft does not support " + what);
}

constexpr size_t kMaxSteps = 16;         // normalisers, pre-tokenizers, parts of a template
constexpr size_t kMaxReplacement = 256;  // bytes that a normaliser may put in

std::string quoted(std::string_view text) { return std::string("'").append(text).append("'"); }

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
    fail(ErrorKind::format, std::string("[tokenizer.json] the ") + use + " is not in the vocabulary: " + quoted(token));
  return id;
}

int32_t checked_id(const Vocab& vocab, int64_t id, const char* use) {
  if (!vocab.has(id))
    fail(ErrorKind::format, std::string("[tokenizer.json] the ") + use + " is not in the vocabulary: id " +
                                std::to_string(id));
  return static_cast<int32_t>(id);
}

// ---- vocabulary and added tokens

void read_vocab(Value model, Vocab& vocab) {
  const Value tokens = model.at("vocab");
  if (!tokens.is(Type::object)) unsupported("a vocabulary that is a list (Unigram)");
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
      fail(ErrorKind::format, "[tokenizer.json] an added token has two ids: " + quoted(token.content) + ", " +
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
  if (text.string().size() > kMaxReplacement) unsupported("a normaliser that puts in more than 256 bytes");
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
    const Value pattern = value.at("pattern").find("String");
    if (!pattern || pattern.string().empty()) unsupported("a Replace normaliser with a regular expression");
    chain.add(replace_normaliser(pattern.string(), inserted(value.at("content"))));
  } else {
    unsupported("the normaliser " + quoted(type));
  }
}

// ---- pre-tokenizer

std::unique_ptr<Splitter> split_of(Value value) {
  const Value pattern = value.at("pattern");
  const Value expression = pattern.find("Regex");
  if (!expression) unsupported("a Split pre-tokenizer with a literal: " + quoted(pattern.at("String").string()));
  const std::string_view behaviour = value.at("behavior").string();
  const bool matches_only = behaviour == "Removed" && value.boolean_or("invert", false);
  if (behaviour != "Isolated" && !matches_only) unsupported("a Split with behaviour " + quoted(behaviour));
  return split_by_expression(expression.string(), matches_only);
}

// Appends to the chain; true once it ends in the byte alphabet.
bool add_splitters(Value value, Splitters& chain) {
  if (!given(value)) return false;
  if (chain.size() == kMaxSteps) unsupported("more than 16 pre-tokenizers");
  const std::string_view type = value.at("type").string();
  if (type == "Sequence") {
    bool bytes = false;
    for (const Value item : value.at("pretokenizers").items()) {
      if (bytes) unsupported("a pre-tokenizer behind ByteLevel");
      bytes = add_splitters(item, chain);
    }
    return bytes;
  }
  if (type == "ByteLevel") {
    const bool space = value.boolean_or("add_prefix_space", true), cuts = value.boolean_or("use_regex", true);
    if (cuts) chain.push_back(split_by(Pattern::gpt2));
    else if (space) chain.push_back(split_nothing());
    if (space) chain.back()->prepend_space = true;
    return true;
  }
  if (type == "BertPreTokenizer") chain.push_back(split_bert());
  else if (type == "Split") chain.push_back(split_of(value));
  else if (type == "Digits") chain.push_back(split_digits(value.boolean_or("individual_digits", false)));
  else if (type == "Whitespace") chain.push_back(split_words());
  else if (type == "WhitespaceSplit") chain.push_back(split_spaces());
  else if (type != "Punctuation") unsupported("the pre-tokenizer " + quoted(type));
  else if (value.string_or("behavior", "Isolated") == "Isolated") chain.push_back(split_punctuation());
  else unsupported("Punctuation with behaviour " + quoted(value.at("behavior").string()));
  return false;
}

// ---- post-processor

Template template_of(Value list, Value special_tokens, const Vocab& vocab) {
  Template parts;
  if (list.size() > kMaxSteps) unsupported("a template of more than 16 parts");
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
  if (id == kNone) fail(ErrorKind::format, "[tokenizer.json] the post-processor names a token without its id");
  return id;
}

// True when it decides where special tokens go.
bool read_processor(Value value, Parts& parts) {
  if (!given(value)) return false;
  const std::string_view type = value.at("type").string();
  if (type == "ByteLevel") return false;  // about offsets only
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
    unsupported("the post-processor " + quoted(type));
  }
  return true;
}

// ---- decoder

Decoder decoder_of(Value value) {
  Decoder decoder;
  if (!given(value)) return decoder;
  const std::string_view type = value.at("type").string();
  if (type == "ByteLevel") {
    decoder.kind = Decoding::bytes;
  } else if (type == "WordPiece") {
    decoder = {Decoding::word_piece, std::string(value.string_or("prefix", "##")), value.boolean_or("cleanup", true)};
  } else if (type == "Fuse") {
    decoder.kind = Decoding::joined;
  } else if (type == "Sequence") {
    decoder.kind = Decoding::joined;  // also what an empty sequence does
    bool fused = false;
    for (const Value item : value.at("decoders").items()) {
      const Decoder next = decoder_of(item);
      if (next.kind == Decoding::joined) {
        fused = true;
        continue;
      }
      if (fused || decoder.kind != Decoding::joined) unsupported("a sequence of decoders where one follows another");
      decoder = next;
    }
  } else {
    unsupported("the decoder " + quoted(type));
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
  if (longest < 0) fail(ErrorKind::format, "[tokenizer.json] max_input_chars_per_word is negative");
  return std::make_unique<WordPiece>(vocab, model.string_or("continuing_subword_prefix", "##"),
                                     token_id(vocab, model.string_or("unk_token", "[UNK]"), "unknown token"),
                                     static_cast<size_t>(longest));
}

ByteBpe::Merge merge_of(Value value) {
  if (value.is(Type::array)) {
    if (value.size() != 2) fail(ErrorKind::format, "[tokenizer.json] a merge that is not of two tokens");
    auto items = value.items();
    const std::string_view left = (*items.first).string();
    return {left, (*++items.first).string()};
  }
  const std::string_view text = value.string();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    fail(ErrorKind::format, "[tokenizer.json] a merge that is not of two tokens: " + quoted(text));
  return {text.substr(0, space), text.substr(space + 1)};
}

std::unique_ptr<Model> byte_bpe(Value model, const Vocab& vocab) {
  for (const char* option : {"byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix"})
    if (asks(model, option)) unsupported(std::string("BPE with ") + option);
  std::vector<ByteBpe::Merge> merges;
  const Value list = model.at("merges");
  merges.reserve(list.size());
  for (const Value item : list.items()) merges.push_back(merge_of(item));
  ByteBpe::Options options;
  options.whole_words = model.boolean_or("ignore_merges", false);
  options.fuse_unknown = model.boolean_or("fuse_unk", false);
  if (asks(model, "unk_token")) options.unknown = token_id(vocab, model.at("unk_token").string(), "unknown token");
  return std::make_unique<ByteBpe>(vocab, merges, options);
}

}  // namespace

std::unique_ptr<Tokenizer> from_json(std::string_view text, std::string_view where) {
  const json::Document document = json::parse(text, where);
  const Value root = document.root(), model = root.at("model");
  const std::string_view type = model_type(model);
  if (type != "BPE" && type != "WordPiece") unsupported("the model " + quoted(type));
  Parts parts;
  const bool bytes = add_splitters(root.find("pre_tokenizer"), parts.splitters);
  if (bytes != (type == "BPE")) unsupported(bytes ? "WordPiece behind ByteLevel" : "BPE that is not ByteLevel");
  read_vocab(model, parts.vocab);
  // The model knows its own tokens only, so it is built before the added ones join the vocabulary.
  parts.model = type == "BPE" ? byte_bpe(model, parts.vocab) : word_piece(model, parts.vocab);
  read_added(root, parts);
  add_normaliser(root.find("normalizer"), parts.normaliser);
  read_processor(root.find("post_processor"), parts);
  parts.decoder = decoder_of(root.find("decoder"));
  return std::make_unique<Tokenizer>(std::move(parts));
}

}  // namespace weft::text
