// writing: a text that a decoder writes, without what computes it: which step comes next, and what becomes of its logits.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "capi/adapters.h"
#include "capi/choosing.h"
#include "capi/runner.h"
#include "capi/stops.h"
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

// What is read of a step.
enum class Wanted { nothing, largest, logits };

class Writing {
 public:
  // Receives each token with the text that can be shown now, and last -1 with the text that was held back, if there is some.
  // False cancels.
  using OnToken = std::function<bool(int32_t, std::string_view)>;
  struct Rules {
    const std::unordered_set<int32_t>& ends;
    bool skip_special;  // in the text
    int64_t context, vocab, page_width, step_tokens;
  };

  // `held` are the tokens whose keys and values are in the state, which steps extend; it outlives this.
  Writing(const text::Tokenizer& tokenizer, text::Ids prompt, Asked asked, const Rules& rules, text::Ids& held, OnToken on_token);
  Writing(const Writing&) = delete;  // `stops_` refers to `asked_`
  Writing& operator=(const Writing&) = delete;

  bool next(Step& step);  // false when the text has ended
  // After the step was computed: its logits, those that are wanted.
  void take(std::vector<float>& logits);
  void take(int32_t largest);
  Wanted wanted() const;
  const Generated& cancel();
  const Generated& done() const { return done_; }

 private:
  bool computed();
  void accept(int32_t token);
  void finish(Finish how);

  const text::Tokenizer& tokenizer_;
  text::Ids prompt_;
  Asked asked_;
  Rules rules_;
  text::Ids& held_;
  OnToken on_token_;
  Chooser chooser_;
  text::Tokenizer::Stream stream_;
  StopText stops_;
  text::Ids current_;  // of the step that is being computed
  size_t at_ = 0;      // tokens before it
  int32_t token_ = 0;  // the last one
  int64_t most_;
  bool ended_ = false;
  Generated done_;
};

}  // namespace weft::host
