// embedder: texts to vectors with a bundle whose kind is "encoder": weft/embed in C++, without what a host does itself.
#pragma once
#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "capi/runner.h"
#include "text/tokenizer.h"

namespace weft::host {

class Embedder {
 public:
  Embedder(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool);

  int64_t dimension() const { return dimension_; }
  int64_t max_tokens() const { return max_tokens_; }

  // Writes one vector after the other. False when `cancelled` became true between two steps.
  bool embed(const std::vector<std::string_view>& texts, std::optional<std::string_view> role, bool truncate,
             const std::atomic<bool>& cancelled, float* vectors);

 private:
  struct Tokens {
    text::Ids ids;
    int32_t skip = 0;  // tokens of a prompt that is not pooled
  };
  std::string prompt_of(std::optional<std::string_view> role) const;
  Tokens tokens_of(std::string_view text, size_t index, const std::string& prompt, bool truncate) const;
  void run(const std::vector<Tokens>& batch, float* vectors);

  const text::Tokenizer& tokenizer_;
  Runner runner_;
  std::string pooling_;
  bool skips_;
  int64_t dimension_, max_tokens_;
  std::unordered_map<std::string, std::string> prompts_;
};

}  // namespace weft::host
