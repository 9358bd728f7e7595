// embedder: texts to vectors with a bundle whose kind is "encoder": weft/embed in C++, without what a host does itself.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capi/adapters.h"
#include "capi/runner.h"
#include "text/tokenizer.h"

namespace weft::host {

struct EmbedRules {
  std::optional<std::string_view> role;
  bool truncate = false;
  Held adapter;  // null: the model alone
};

class Embedder {
 public:
  Embedder(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool);

  int64_t dimension() const { return dimension_; }
  int64_t max_tokens() const { return max_tokens_; }

  // Writes one vector after the other. False when `cancelled` became true between two steps.
  bool embed(const std::vector<std::string_view>& texts, const EmbedRules& rules, const std::atomic<bool>& cancelled, float* vectors);
  Adapters& adapters() { return adapters_; }

 private:
  struct Tokens {
    text::Ids ids;
    int32_t skip = 0;  // tokens of a prompt that is not pooled
  };
  std::string prompt_of(std::optional<std::string_view> role) const;
  Tokens tokens_of(std::string_view text, size_t index, const std::string& prompt, bool truncate) const;
  void run(const std::vector<Tokens>& batch, const Held& adapter, float* vectors);

  const text::Tokenizer& tokenizer_;
  Runner runner_;
  Adapters adapters_;
  std::string pooling_;
  bool skips_;
  int64_t dimension_, max_tokens_;
  std::unordered_map<std::string, std::string> prompts_;
};

}  // namespace weft::host
