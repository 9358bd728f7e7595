// Small tokenizers of every kind take any text and any ids. A byte-level one gives every text back as it was. The input:
// which tokenizer, a count of ids, the ids, then a text.
#include <array>

#include "fuzz/tokenizing.h"

using namespace weft;

namespace {

using Made = std::unique_ptr<text::Tokenizer>;

Made byte_level() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) {
    tokens.emplace_back();
    utf8::append(tokens.back(), text::byte_alphabet::character(static_cast<unsigned char>(byte)));
  }
  const std::string space = tokens[' '];
  std::vector<std::string> merges;
  for (const auto& [left, right] : {std::pair(space, std::string("t")), {"h", "e"}, {space + "t", "he"}, {"e", "e"}}) {
    tokens.push_back(left + right);
    merges.push_back(left + " " + right);
  }
  tokens.emplace_back("<|end|>");
  text::GgufVocab vocab;
  vocab.model = "gpt2", vocab.pre = "llama-bpe", vocab.add_bos = 0;
  vocab.tokens.assign(tokens.begin(), tokens.end());
  vocab.merges.assign(merges.begin(), merges.end());
  vocab.types.assign(tokens.size(), 1);
  vocab.types.back() = 3;
  return text::from_gguf(vocab);
}

Made pieces() {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  char name[8];
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    tokens.emplace_back(name);
  }
  for (const char* piece : {"\xE2\x96\x81", "t", "h", "e", "\xE2\x96\x81t", "he", "\xE2\x96\x81the", "\xC3\xA9", "  "})
    tokens.emplace_back(piece);
  text::GgufVocab vocab;
  vocab.model = "llama", vocab.bos = 1, vocab.eos = 2, vocab.unknown = 0;
  vocab.tokens.assign(tokens.begin(), tokens.end());
  vocab.types.assign(tokens.size(), 6);
  vocab.types[0] = 2, vocab.types[1] = vocab.types[2] = 3;
  for (size_t i = 259; i < tokens.size(); ++i) vocab.types[i] = i % 5 == 0 ? 4 : 1;
  for (size_t i = 0; i < tokens.size(); ++i) vocab.scores.push_back(-static_cast<float>(i % 7));
  return text::from_gguf(vocab);
}

Made word_piece() {
  text::VocabFileOptions options;
  options.rules = {true, true, true, true};
  options.special = {"[UNK]", "[CLS]", "[SEP]"};
  return text::from_vocab_file("[PAD]\n[UNK]\n[CLS]\n[SEP]\nthe\n##t\n##he\nt\nh\n\xE4\xBD\xA0\n.\n!\ne\n##e\n", options);
}

Made unigram() {
  return text::from_json(R"({"added_tokens": [{"id": 0, "content": "<unk>", "special": true},
      {"id": 7, "content": "<mask>", "special": false, "lstrip": true, "rstrip": true, "single_word": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"},
      {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
    "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace"}]},
    "decoder": {"type": "Metaspace"},
    "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [["<unk>", 0], ["▁", -1.5], ["t", -2],
      ["h", -2.5], ["e", -3], ["▁the", -4], ["he", -3.5]]}})", "unigram");
}

Made character_bpe() {
  return text::from_json(R"({"added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
      {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
    "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
      {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
      "vocab": {"<unk>": 0, "▁": 1, "t": 2, "h": 3, "e": 4, "▁t": 5, "he": 6, "▁the": 7, "<0x0A>": 8, "<0xC3>": 9},
      "merges": ["▁ t", "h e", "▁t he"]}})", "bpe");
}

const std::array<Made, 5>& tokenizers() {
  static const std::array<Made, 5> all = {byte_level(), pieces(), word_piece(), unigram(), character_bpe()};
  return all;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  const size_t which = fields.byte() % tokenizers().size();
  const text::Tokenizer& tokenizer = *tokenizers()[which];
  text::Ids ids(fields.byte());
  for (int32_t& id : ids) id = static_cast<int32_t>(fields.number<uint16_t>() % tokenizer.vocab().size());
  fuzz::check_decoding(tokenizer, ids, true);
  fuzz::check_decoding(tokenizer, ids, false);
  const std::string text = fuzz::as_text(fields.rest());
  const text::Ids encoded = fuzz::check_encoding(tokenizer, text);
  if (which == 0) REQUIRE(tokenizer.decode(encoded.data(), encoded.size(), false) == text);
  return 0;
}
