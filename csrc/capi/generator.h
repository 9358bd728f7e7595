// generator: text after text with a bundle whose kind is "decoder". One sequence at a time; tokens that the one before it
// began with too are not computed again.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "capi/adapters.h"
#include "capi/choosing.h"
#include "capi/conversation.h"
#include "capi/runner.h"
#include "text/tokenizer.h"

namespace weft::host {

enum class Finish { stop, length, cancelled };

struct Asked {
  int64_t max_tokens = 0;  // 0: as many as the context has room for
  Sampling sampling;
  std::vector<std::string> stops;
  Held adapter;  // null: the model alone
};

struct Generated {
  size_t prompt_tokens = 0, tokens = 0;
  Finish finish = Finish::length;
};

class Generator {
 public:
  // Receives each token with the text that can be shown now, and last -1 with the text that was held back, if there is some.
  // False cancels.
  using OnToken = std::function<bool(int32_t, std::string_view)>;

  Generator(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool, int64_t context);

  int64_t context() const { return context_; }
  const Conversation& conversation() const { return conversation_; }
  Adapters& adapters() { return adapters_; }
  Generated generate(std::string_view prompt, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token);
  Generated chat(const std::vector<Message>& messages, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token);

 private:
  struct Ending {
    const std::unordered_set<int32_t>& ids;
    bool skip_special;  // in the text
  };
  Generated run(const text::Ids& prompt, const Asked& asked, const Ending& ending, const std::atomic<bool>& cancelled, const OnToken& on_token);
  void check(const text::Ids& prompt, const Asked& asked) const;
  std::vector<float> compute(std::span<const int32_t> ids, size_t start, const Held& adapter);

  const text::Tokenizer& tokenizer_;
  Runner runner_;
  Adapters adapters_;
  int64_t vocab_, context_;
  int32_t bos_;
  std::unordered_set<int32_t> ends_, answer_ends_;  // of a text, and of an answer
  text::Ids held_;  // the tokens whose keys and values are in the state
  uint64_t held_with_ = 0;  // the number of the adapter that they were computed with; 0 is none
  Conversation conversation_;
};

}  // namespace weft::host
