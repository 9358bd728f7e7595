// The tokenizer.ggml.* metadata of a GGUF file is refused with an Error, or gives a tokenizer that encodes and decodes.
// The input: model, pre-tokenizer and flags by index, named ids, then tokens with score and type, merges, a text.
#include "fuzz/tokenizing.h"

using namespace weft;

namespace {

constexpr const char* kModels[] = {"gpt2", "llama", "bert", "", "t5"};
constexpr const char* kPres[] = {"gpt-2", "default", "", "smollm", "llama-bpe", "qwen2", "qwen35", "odd"};

// What a file says about a flag: yes, no, or nothing.
int flag_of(unsigned bits) { return bits == 3 ? -1 : static_cast<int>(bits & 1); }

// A merge is two tokens of the vocabulary, or a text that need not be any.
std::string read_merge(fuzz::Fields& fields, const std::vector<std::string_view>& tokens) {
  const uint8_t left = fields.byte(), right = fields.byte();
  if (left == 255 || tokens.empty()) return std::string(fields.text(right % 16));
  return std::string(tokens[left % tokens.size()]).append(" ").append(tokens[right % tokens.size()]);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::Fields fields(data, size);
  text::GgufVocab vocab;
  vocab.model = kModels[fields.byte() % std::size(kModels)];
  vocab.pre = kPres[fields.byte() % std::size(kPres)];
  const uint8_t flags = fields.byte(), arrays = fields.byte();
  vocab.add_bos = flag_of(flags & 3), vocab.add_eos = flag_of(flags >> 2 & 3), vocab.add_space = flag_of(flags >> 4 & 3);
  for (int32_t* id : {&vocab.bos, &vocab.eos, &vocab.unknown, &vocab.cls, &vocab.separator})
    *id = arrays & 8 ? fields.number<int32_t>() : static_cast<int8_t>(fields.byte());
  const uint8_t token_count = fields.byte(), merge_count = fields.byte();
  for (unsigned i = 0; i < token_count; ++i) {
    const uint8_t shape = fields.byte();
    vocab.tokens.push_back(fields.text(shape & 31));
    if (arrays & 1) vocab.scores.push_back(shape & 32 ? fields.number<float>() : -static_cast<float>(i));
    if (arrays & 2) vocab.types.push_back(shape & 64 ? fields.byte() : 1);
  }
  std::vector<std::string> merges;
  for (unsigned i = 0; i < merge_count; ++i) merges.push_back(read_merge(fields, vocab.tokens));
  vocab.merges.assign(merges.begin(), merges.end());
  if (arrays & 4 && !vocab.types.empty()) vocab.types.pop_back();
  std::unique_ptr<text::Tokenizer> tokenizer;
  if (fuzz::accepted([&] { tokenizer = text::from_gguf(vocab); })) fuzz::check_tokenizer(*tokenizer, fields.rest());
  return 0;
}
