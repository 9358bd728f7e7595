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
  struct Tokens {
    text::Ids ids;
    int32_t skip = 0;  // tokens of a prompt that is not pooled
  };

 public:
  // `step_tokens`: 0, or that of a host that computes steps of so many tokens itself.
  Embedder(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool, int64_t step_tokens);

  int64_t dimension() const { return dimension_; }
  int64_t max_tokens() const { return max_tokens_; }

  // Writes one vector after the other. False when `cancelled` became true between two steps.
  bool embed(const std::vector<std::string_view>& texts, const EmbedRules& rules, const std::atomic<bool>& cancelled, float* vectors);
  Adapters& adapters() { return adapters_; }

  // Texts as steps, in their order.
  class Batches {
   public:
    Batches(const Embedder& embedder, std::vector<std::string_view> texts, const EmbedRules& rules);
    bool next(Step& step);  // false when there are no more

   private:
    const Embedder& embedder_;
    std::vector<std::string_view> texts_;
    std::string prompt_;
    bool truncate_;
    Held adapter_;
    size_t at_ = 0;               // the first text that no step has had
    std::optional<Tokens> first_;  // its tokens, if they are known
  };

 private:
  std::string prompt_of(std::optional<std::string_view> role) const;
  Tokens tokens_of(std::string_view text, size_t index, const std::string& prompt, bool truncate) const;
  Step step_of(const std::vector<Tokens>& batch, const Held& adapter) const;

  const text::Tokenizer& tokenizer_;
  Runner runner_;
  Adapters adapters_;
  std::string pooling_;
  bool skips_;
  int64_t dimension_, max_tokens_, batch_tokens_;
  std::unordered_map<std::string, std::string> prompts_;
};

}  // namespace weft::host
