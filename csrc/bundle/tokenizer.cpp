// tokenizer: the five readers of csrc/text, given what the manifest says and parts of the bundle's files.
#include <cstring>

#include "bundle/bundle.h"
#include "core/error.h"

namespace weft::bundle {

namespace {

std::string_view as_text(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

template <class T>
std::vector<T> numbers(std::span<const std::byte> bytes) {
  if (bytes.size() % sizeof(T)) fail(ErrorKind::format, kManifest, "a part of the tokenizer is not whole numbers");
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

// The strings of `bytes`, each behind the end of the one before it; `lengths` are u32.
std::vector<std::string_view> strings(std::string_view bytes, std::span<const std::byte> lengths) {
  std::vector<std::string_view> out;
  for (const uint32_t length : numbers<uint32_t>(lengths)) {
    if (length > bytes.size()) fail(ErrorKind::format, kManifest, "the tokenizer's strings lie outside their part");
    out.push_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
  return out;
}

int32_t id_or(json::Value object, std::string_view key, int32_t otherwise) {
  const int64_t id = object.integer_or(key, otherwise);
  if (id < -1 || id > INT32_MAX) fail(ErrorKind::format, kManifest, "the tokenizer has an id that is none: " + std::to_string(id));
  return static_cast<int32_t>(id);
}

}  // namespace

std::unique_ptr<text::Tokenizer> Bundle::tokenizer() const {
  const json::Value about = manifest().find("tokenizer");
  if (!about || about.is_null()) return nullptr;
  const std::string_view kind = about.at("kind").string();
  const auto bytes = [&](std::string_view name) { return part(about.at("parts").at(name), name); };
  const auto text = [&](std::string_view name) { return as_text(bytes(name)); };
  if (kind == "json") {
    text::Around around;
    if (const json::Value given = about.find("around"); given && !given.is_null())
      around.emplace(given.at("bos").string(), given.at("eos").string());
    return text::from_json(text("json"), "tokenizer.json", around);
  }
  if (kind == "sentencepiece") return text::from_sentencepiece(text("model"), about.at("add_bos").boolean(), about.at("add_eos").boolean());
  if (kind == "vocab") {
    text::VocabFileOptions options;
    options.rules = {true, about.at("space_cjk").boolean(), about.at("strip_accents").boolean(), about.at("lower").boolean()};
    options.unknown = about.at("unknown").string(), options.first = about.at("first").string(), options.separator = about.at("separator").string();
    for (const json::Value token : about.at("special").items()) options.special.emplace_back(token.string());
    return text::from_vocab_file(text("vocab"), options);
  }
  if (kind == "tiktoken") {
    text::TiktokenOptions options;
    options.pattern = about.at("pattern").string();
    for (const auto& [token, id] : about.at("special").members()) options.special.emplace_back(token, id.integer());
    options.first_id = about.at("first_id").integer(), options.bos = id_or(about, "bos", text::kNone), options.nfc = about.at("nfc").boolean();
    return text::from_tiktoken(text("ranks"), options);
  }
  if (kind != "gguf") fail(ErrorKind::unsupported, kManifest, "a tokenizer of kind " + std::string(kind) + " is not known");
  text::GgufVocab vocab;
  vocab.model = about.at("model").string(), vocab.pre = about.at("pre").string();
  vocab.tokens = strings(text("tokens"), bytes("token_lengths"));
  vocab.merges = strings(text("merges"), bytes("merge_lengths"));
  vocab.scores = numbers<float>(bytes("scores"));
  vocab.types = numbers<int32_t>(bytes("types"));
  vocab.charsmap = text("charsmap");
  const json::Value ids = about.at("numbers");
  vocab.bos = id_or(ids, "bos", text::kNone), vocab.eos = id_or(ids, "eos", text::kNone), vocab.unknown = id_or(ids, "unk", text::kNone);
  vocab.cls = id_or(ids, "cls", text::kNone), vocab.separator = id_or(ids, "sep", text::kNone);
  vocab.add_bos = id_or(ids, "add_bos", -1), vocab.add_eos = id_or(ids, "add_eos", -1);
  vocab.add_space = id_or(ids, "add_space", -1), vocab.collapse = id_or(ids, "collapse", -1);
  return text::from_gguf(vocab);
}

}  // namespace weft::bundle
