#include "capi/generator.h"

#include <algorithm>
#include <utility>

#include "capi/stops.h"
#include "core/error.h"

namespace weft::host {

namespace {

constexpr int64_t kStepTokens = 512;       // as in weft/runtime/decoder.py
constexpr int64_t kDefaultContext = 4096;  // of a bundle that reads more, where the host asks for nothing else
constexpr int64_t kMaxContext = int64_t{1} << 24;

int64_t context_of(const bundle::Bundle& bundle, const bundle::Limits& limits, int64_t asked) {
  const int64_t own = bundle.manifest().at("generate").at("context").integer();
  if (limits.pages > kMaxContext / kPage) fail(ErrorKind::format, "program", "has a longer table of pages than any text needs");
  if (own < 1 || own > limits.pages * kPage || own > limits.positions) fail(ErrorKind::format, bundle::kManifest, "context does not fit the program");
  if (asked > own) fail(ErrorKind::input, "open", "context must be at most " + std::to_string(own) + ", what this model reads");
  return asked ? asked : std::min(own, kDefaultContext);
}

void add_ids(std::unordered_set<int32_t>& out, json::Value ids, int64_t vocab) {
  for (const json::Value id : ids.items()) {
    if (id.integer() < 0 || id.integer() >= vocab) fail(ErrorKind::format, bundle::kManifest, "has an end token that is not an id of the model");
    out.insert(static_cast<int32_t>(id.integer()));
  }
}

}  // namespace

Generator::Generator(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool, int64_t context)
    : tokenizer_(tokenizer), runner_(bundle, "logits", level, pool, kStepTokens), adapters_(bundle, runner_, "logits_adapted"), vocab_(runner_.columns("logits", false)),
      context_(context_of(bundle, runner_.limits(), context)), conversation_(bundle.manifest(), tokenizer) {
  if (vocab_ < 1 || vocab_ > runner_.limits().ids) fail(ErrorKind::format, bundle::kManifest, "the model gives more ids than it reads");
  const json::Value about = bundle.manifest().at("generate");
  const json::Value bos = about.find("bos_id");
  bos_ = bos && !bos.is_null() && bos.integer() >= 0 && bos.integer() < vocab_ ? static_cast<int32_t>(bos.integer()) : -1;
  add_ids(ends_, about.at("eos_ids"), vocab_);
  answer_ends_ = ends_;
  if (const json::Value chat = bundle.manifest().find("chat"); chat && !chat.is_null()) add_ids(answer_ends_, chat.at("ends"), vocab_);
  runner_.start((context_ + kPage - 1) / kPage);
}

Generated Generator::generate(std::string_view prompt, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token) {
  text::Ids ids = tokenizer_.encode(prompt, true, text::Parse::all);
  // The bos token is not added to a prompt that already begins with it.
  if (bos_ >= 0 && ids.size() > 1 && ids[0] == bos_ && ids[1] == bos_) {
    const text::Ids none = tokenizer_.encode("", true, text::Parse::ordinary);
    if (!none.empty() && none[0] == bos_) ids.erase(ids.begin());
  }
  return run(ids, asked, {ends_, true}, cancelled, on_token);
}

Generated Generator::chat(const std::vector<Message>& messages, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token) {
  return run(conversation_.ids(messages), asked, {answer_ends_, false}, cancelled, on_token);
}

void Generator::check(const text::Ids& prompt, const Asked& asked) const {
  adapters_.runner(asked.adapter);  // refuses one of another model
  if (prompt.empty()) fail(ErrorKind::input, "generate", "the prompt is empty, and the model has no token to begin a text with; give some text");
  if (static_cast<int64_t>(prompt.size()) >= context_) fail(ErrorKind::too_long, "generate", "the prompt has " + std::to_string(prompt.size()) + " tokens, the context is " + std::to_string(context_) + "; shorten it, or open the model with a larger one");
  for (const int32_t id : prompt)
    if (id < 0 || id >= runner_.limits().ids) fail(ErrorKind::format, "tokenizer", "has ids that the model does not have: " + std::to_string(id));
}

// Logits after `ids`, which are at the positions from `start` on; at most kStepTokens of them.
std::vector<float> Generator::compute(std::span<const int32_t> ids, size_t start, const Held& adapter) {
  Step step;
  step.ids.assign(ids.begin(), ids.end());
  for (size_t i = 0; i < ids.size(); ++i) step.positions.push_back(static_cast<int32_t>(start + i));
  step.segments = {0, static_cast<int32_t>(ids.size())};
  step.rows = {static_cast<int32_t>(ids.size()) - 1};
  step.types.assign(ids.size(), 0);
  step.page_width = runner_.limits().pages;
  step.pages.assign(static_cast<size_t>(step.page_width), 0);
  const size_t pages = (start + ids.size() + kPage - 1) / kPage;
  for (size_t i = 0; i < pages; ++i) step.pages[i] = static_cast<int32_t>(i);
  step.adapters = {adapter ? adapter->index() : 0};
  held_.resize(start);  // should the step fail, what it may have written does not count
  std::vector<float> logits = adapters_.runner(adapter).run(step, "logits");
  if (logits.size() != static_cast<size_t>(vocab_)) fail(ErrorKind::format, "program", "gives another number of logits than it says");
  held_.insert(held_.end(), ids.begin(), ids.end());
  return logits;
}

Generated Generator::run(const text::Ids& prompt, const Asked& asked, const Ending& ending, const std::atomic<bool>& cancelled, const OnToken& on_token) {
  check(prompt, asked);
  Chooser chooser(asked.sampling, prompt);
  Generated done{prompt.size(), 0, Finish::length};
  const int64_t room = context_ - static_cast<int64_t>(prompt.size()), most = asked.max_tokens ? std::min(asked.max_tokens, room) : room;
  const uint64_t with = asked.adapter ? asked.adapter->number() : 0;
  if (std::exchange(held_with_, with) != with) held_.clear();
  size_t at = static_cast<size_t>(std::mismatch(prompt.begin(), prompt.end(), held_.begin(), held_.end()).first - prompt.begin());
  at = std::min(at, prompt.size() - 1);  // the last token is always computed, for its logits
  std::vector<float> logits;
  while (at < prompt.size()) {
    if (cancelled.load(std::memory_order_relaxed)) return done.finish = Finish::cancelled, done;
    const size_t count = std::min(static_cast<size_t>(kStepTokens), prompt.size() - at);
    logits = compute(std::span(prompt).subspan(at, count), at, asked.adapter);
    at += count;
  }
  text::Tokenizer::Stream stream(tokenizer_, ending.skip_special);
  StopText stops(asked.stops);
  while (true) {
    if (cancelled.load(std::memory_order_relaxed)) return done.finish = Finish::cancelled, done;
    const int32_t token = chooser.choose(logits);
    if (ending.ids.contains(token)) {
      done.finish = Finish::stop;
      break;
    }
    ++done.tokens;
    chooser.note(token);
    const std::string text = stops.add(static_cast<size_t>(token) < static_cast<size_t>(tokenizer_.vocab().size()) ? stream.add(token) : "");
    if (!on_token(token, text)) return done.finish = Finish::cancelled, done;
    if (stops.found) return done.finish = Finish::stop, done;
    if (static_cast<int64_t>(done.tokens) >= most) break;
    logits = compute({&token, 1}, at++, asked.adapter);
  }
  std::string rest = stops.add(stream.finish());
  if (stops.found) done.finish = Finish::stop;
  rest += stops.finish();
  if (!rest.empty() && !on_token(-1, rest)) done.finish = Finish::cancelled;
  return done;
}

}  // namespace weft::host
