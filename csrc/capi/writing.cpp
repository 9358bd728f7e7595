#include "capi/writing.h"

#include <algorithm>

#include "core/error.h"

namespace weft::host {

Writing::Writing(const text::Tokenizer& tokenizer, text::Ids prompt, Asked asked, const Rules& rules, text::Ids& held, OnToken on_token)
    : tokenizer_(tokenizer), prompt_(std::move(prompt)), asked_(std::move(asked)), rules_(rules), held_(held), on_token_(std::move(on_token)),
      chooser_(asked_.sampling, prompt_), stream_(tokenizer, rules.skip_special), stops_(asked_.stops), done_{prompt_.size(), 0, Finish::length} {
  const int64_t room = rules_.context - static_cast<int64_t>(prompt_.size());
  most_ = asked_.max_tokens ? std::min(asked_.max_tokens, room) : room;
  at_ = static_cast<size_t>(std::mismatch(prompt_.begin(), prompt_.end(), held_.begin(), held_.end()).first - prompt_.begin());
  at_ = std::min(at_, prompt_.size() - 1);  // the last token is always computed, for its logits
}

bool Writing::next(Step& step) {
  if (ended_) return false;
  if (at_ < prompt_.size()) {
    const size_t count = std::min(static_cast<size_t>(rules_.step_tokens), prompt_.size() - at_);
    current_.assign(prompt_.begin() + static_cast<ptrdiff_t>(at_), prompt_.begin() + static_cast<ptrdiff_t>(at_ + count));
  } else {
    current_ = {token_};
  }
  step = Step();
  step.ids.assign(current_.begin(), current_.end());
  for (size_t i = 0; i < current_.size(); ++i) step.positions.push_back(static_cast<int32_t>(at_ + i));
  step.segments = {0, static_cast<int32_t>(current_.size())};
  step.rows = {static_cast<int32_t>(current_.size()) - 1};
  step.types.assign(current_.size(), 0);
  step.page_width = rules_.page_width;
  step.pages.assign(static_cast<size_t>(step.page_width), 0);
  const size_t pages = (at_ + current_.size() + kPage - 1) / kPage;
  for (size_t i = 0; i < pages; ++i) step.pages[i] = static_cast<int32_t>(i);
  step.adapters = {asked_.adapter ? asked_.adapter->index() : 0};
  held_.resize(at_);  // should the step fail, what it may have written does not count
  return true;
}

Wanted Writing::wanted() const {
  if (at_ + current_.size() < prompt_.size()) return Wanted::nothing;
  return asked_.sampling.temperature == 0 && asked_.sampling.repetition_penalty == 1 ? Wanted::largest : Wanted::logits;
}

// Whether a token is chosen now.
bool Writing::computed() {
  if (ended_ || current_.empty()) fail(ErrorKind::input, "generate", "there is no step whose logits could be taken");
  const bool chosen = wanted() != Wanted::nothing;
  held_.insert(held_.end(), current_.begin(), current_.end());
  at_ += current_.size();
  current_.clear();
  return chosen;
}

void Writing::take(std::vector<float>& logits) {
  if (!computed()) return;
  if (logits.size() != static_cast<size_t>(rules_.vocab)) fail(ErrorKind::format, "program", "gives another number of logits than it says");
  accept(chooser_.choose(logits));
}

void Writing::take(int32_t largest) {
  if (wanted() == Wanted::logits) fail(ErrorKind::input, "generate", "this text is drawn from all logits, not from the largest");
  if (largest < 0 || largest >= rules_.vocab) fail(ErrorKind::input, "generate", "token " + std::to_string(largest) + " is not one of the model's");
  if (computed()) accept(largest);
}

const Generated& Writing::cancel() {
  ended_ = true;
  done_.finish = Finish::cancelled;
  return done_;
}

void Writing::accept(int32_t token) {
  if (rules_.ends.contains(token)) return finish(Finish::stop);
  ++done_.tokens;
  chooser_.note(token);
  token_ = token;
  const std::string text = stops_.add(static_cast<size_t>(token) < static_cast<size_t>(tokenizer_.vocab().size()) ? stream_.add(token) : "");
  if (!on_token_(token, text)) {
    cancel();
  } else if (stops_.found) {
    done_.finish = Finish::stop;
    ended_ = true;
  } else if (static_cast<int64_t>(done_.tokens) >= most_) {
    finish(Finish::length);
  }
}

// The end of a text, with what was held back of it.
void Writing::finish(Finish how) {
  ended_ = true;
  done_.finish = how;
  std::string rest = stops_.add(stream_.finish());
  if (stops_.found) done_.finish = Finish::stop;
  rest += stops_.finish();
  if (!rest.empty() && !on_token_(-1, rest)) done_.finish = Finish::cancelled;
}

}  // namespace weft::host
