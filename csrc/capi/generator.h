// generator: text after text with a bundle whose kind is "decoder". One sequence at a time; tokens that the one before it
// began with too are not computed again.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "capi/adapters.h"
#include "capi/conversation.h"
#include "capi/runner.h"
#include "capi/writing.h"
#include "text/tokenizer.h"

namespace weft::host {

class Generator {
 public:
  using OnToken = Writing::OnToken;

  // `step_tokens`: 0, or that of a host that computes steps of at most so many tokens itself.
  Generator(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool, int64_t context, int64_t step_tokens);

  int64_t context() const { return context_; }
  const Conversation& conversation() const { return conversation_; }
  Adapters& adapters() { return adapters_; }
  Generated generate(std::string_view prompt, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token);
  Generated chat(const std::vector<Message>& messages, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token);

  // The same for hosts that compute the steps; one text at a time.
  std::unique_ptr<Writing> start(std::string_view prompt, const Asked& asked, OnToken on_token);
  std::unique_ptr<Writing> start(const std::vector<Message>& messages, const Asked& asked, OnToken on_token);

 private:
  std::unique_ptr<Writing> write(text::Ids prompt, const Asked& asked, const std::unordered_set<int32_t>& ends, bool skip_special, OnToken on_token);
  Generated run(Writing& writing, const Asked& asked, const std::atomic<bool>& cancelled);
  void check(const text::Ids& prompt, const Asked& asked) const;

  const text::Tokenizer& tokenizer_;
  Runner runner_;
  Adapters adapters_;
  int64_t step_tokens_, vocab_, context_;
  int32_t bos_;
  std::unordered_set<int32_t> ends_, answer_ends_;  // of a text, and of an answer
  text::Ids held_;  // the tokens whose keys and values are in the state
  uint64_t held_with_ = 0;  // the number of the adapter that they were computed with; 0 is none
  Conversation conversation_;
};

}  // namespace weft::host
