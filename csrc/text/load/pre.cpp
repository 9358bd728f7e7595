// pre: the pre-tokenizers that llama.cpp's names (tokenizer.ggml.pre) stand for. The rules are those of the models'
// tokenizer.json, not llama.cpp's expressions, which approximate them.
#include "text/load/gguf.h"

#include "core/error.h"
#include "unicode/normalise.h"

namespace weft::text {

namespace {

void gpt2(Splitters& chain) { chain.push_back(split_by(Pattern::gpt2)); }
void llama3(Splitters& chain) { chain.push_back(split_by(Pattern::llama3)); }
void qwen2(Splitters& chain) { chain.push_back(split_by(Pattern::qwen2)); }
void qwen35(Splitters& chain) { chain.push_back(split_by(Pattern::qwen35)); }
void o200k(Splitters& chain) { chain.push_back(split_by(Pattern::o200k)); }
void tekken(Splitters& chain) { chain.push_back(split_by(Pattern::tekken)); }

void digits_gpt2(Splitters& chain) {
  chain.push_back(split_digits(true));
  chain.push_back(split_by(Pattern::gpt2));
}

void falcon(Splitters& chain) {
  chain.push_back(split_punctuation(false));
  chain.push_back(split_by(Pattern::gpt2));
  chain.push_back(split_byte_digits(false));
  chain.push_back(split_by_expression("[0-9][0-9][0-9]", {false, true}));
}

void expressions(Splitters& chain, std::initializer_list<std::string_view> list) {
  for (const std::string_view expression : list) chain.push_back(split_by_expression(expression));
}

constexpr std::string_view kOldIdeographs = "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+";

void deepseek_llm(Splitters& chain) {
  constexpr std::string_view kLetters =
      "\\s?[A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373"
      "\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F"
      "\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77"
      "\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D"
      "\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4"
      "\u1FF6-\u1FFC\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139"
      "\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D"
      "\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A"
      "\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2"
      "\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943]+";
  expressions(chain, {"[\\r\\n]", kLetters, "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+", "\\s+$",
                      kOldIdeographs});
  chain.push_back(split_digits(true));
}

void deepseek_coder(Splitters& chain) {
  expressions(chain, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kOldIdeographs});
  chain.push_back(split_digits(true));
}

void deepseek_v3(Splitters& chain) {
  expressions(chain, {"\\p{N}{1,3}", "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"});
  chain.push_back(split_by(Pattern::deepseek_words));
}

// llama.cpp's own, for files without a name.
void by_default(Splitters& chain) {
  expressions(chain, {"[\\p{P}\\$\\+<=>\\^~\\|]+"});
  chain.push_back(split_by(Pattern::gpt2));
  expressions(chain, {"\\p{N}+", "[0-9][0-9][0-9]"});
}

struct Named {
  std::string_view name;
  void (*add)(Splitters&);
  bool nfc = false, whole_words = false, bos = false;
};

constexpr Named kNamed[] = {
    {"", by_default},
    {"default", by_default},
    {"gpt-2", gpt2},
    {"phi-2", gpt2},
    {"roberta-bpe", gpt2},
    {"jina-v1-en", gpt2},
    {"jina-v2-code", gpt2},
    {"modern-bert", gpt2, true},
    {"mpt", gpt2, true},
    {"olmo", gpt2, true},
    {"starcoder", digits_gpt2},
    {"refact", digits_gpt2},
    {"smollm", digits_gpt2},
    {"command-r", digits_gpt2, true},
    {"falcon", falcon},
    {"llama3", llama3, false, true, true},
    {"llama-v3", llama3, false, true, true},
    {"llama-bpe", llama3, false, true, true},
    {"falcon3", llama3, false, true, true},
    {"falcon-h1", llama3, false, true, true},
    {"lfm2", llama3, false, true, true},
    {"pixtral", llama3, false, true, true},
    {"smaug-bpe", llama3},
    {"dbrx", llama3},
    {"chatglm-bpe", llama3},
    {"glm4", llama3},
    {"qwen2", qwen2, true},
    {"deepseek-r1-qwen", qwen2, true},
    {"stablelm2", qwen2},
    {"hunyuan", qwen2},
    {"grok-2", qwen2},
    {"qwen35", qwen35, true},
    {"deepseek-llm", deepseek_llm},
    {"deepseek-coder", deepseek_coder},
    {"deepseek-v3", deepseek_v3},
    {"hunyuan-dense", deepseek_v3},
    {"gpt-4o", o200k},
    {"llama4", o200k},
    {"tekken", tekken, false, true, true},
};

}  // namespace

Pre read_pre(std::string_view name, Parts& parts) {
  for (const Named& named : kNamed) {
    if (named.name != name) continue;
    if (named.nfc) parts.normaliser.add(form_normaliser(Form::nfc));
    named.add(parts.splitters);
    return {named.whole_words, named.bos};
  }
  fail(ErrorKind::unsupported, "gguf", "weft does not support tokenizer.ggml.pre: '" + std::string(name) + "'");
}

}  // namespace weft::text
