#include "capi/generator.h"

#include <algorithm>
#include <utility>

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

Generator::Generator(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool, int64_t context, int64_t step_tokens)
    : tokenizer_(tokenizer), runner_(bundle, "logits", level, pool, kStepTokens, step_tokens == 0), adapters_(bundle, runner_, "logits_adapted"),
      step_tokens_(step_tokens ? step_tokens : kStepTokens), vocab_(runner_.columns("logits", false)),
      context_(context_of(bundle, runner_.limits(), context)), conversation_(bundle.manifest(), tokenizer) {
  if (vocab_ < 1 || vocab_ > runner_.limits().ids) fail(ErrorKind::format, bundle::kManifest, "the model gives more ids than it reads");
  const json::Value about = bundle.manifest().at("generate");
  const json::Value bos = about.find("bos_id");
  bos_ = bos && !bos.is_null() && bos.integer() >= 0 && bos.integer() < vocab_ ? static_cast<int32_t>(bos.integer()) : -1;
  add_ids(ends_, about.at("eos_ids"), vocab_);
  answer_ends_ = ends_;
  if (const json::Value chat = bundle.manifest().find("chat"); chat && !chat.is_null()) add_ids(answer_ends_, chat.at("ends"), vocab_);
  if (!step_tokens) runner_.start((context_ + kPage - 1) / kPage);
}

Generated Generator::generate(std::string_view prompt, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token) {
  return run(*start(prompt, asked, on_token), asked, cancelled);
}

Generated Generator::chat(const std::vector<Message>& messages, const Asked& asked, const std::atomic<bool>& cancelled, const OnToken& on_token) {
  return run(*start(messages, asked, on_token), asked, cancelled);
}

std::unique_ptr<Writing> Generator::start(std::string_view prompt, const Asked& asked, OnToken on_token) {
  text::Ids ids = tokenizer_.encode(prompt, true, text::Parse::all);
  // The bos token is not added to a prompt that already begins with it.
  if (bos_ >= 0 && ids.size() > 1 && ids[0] == bos_ && ids[1] == bos_) {
    const text::Ids none = tokenizer_.encode("", true, text::Parse::ordinary);
    if (!none.empty() && none[0] == bos_) ids.erase(ids.begin());
  }
  return write(std::move(ids), asked, ends_, true, std::move(on_token));
}

std::unique_ptr<Writing> Generator::start(const std::vector<Message>& messages, const Asked& asked, OnToken on_token) {
  return write(conversation_.ids(messages), asked, answer_ends_, false, std::move(on_token));
}

std::unique_ptr<Writing> Generator::write(text::Ids prompt, const Asked& asked, const std::unordered_set<int32_t>& ends, bool skip_special, OnToken on_token) {
  check(prompt, asked);
  const uint64_t with = asked.adapter ? asked.adapter->number() : 0;
  if (std::exchange(held_with_, with) != with) held_.clear();
  const Writing::Rules rules{ends, skip_special, context_, vocab_, runner_.limits().pages, step_tokens_};
  return std::make_unique<Writing>(tokenizer_, std::move(prompt), asked, rules, held_, std::move(on_token));
}

void Generator::check(const text::Ids& prompt, const Asked& asked) const {
  adapters_.runner(asked.adapter);  // refuses one of another model
  if (prompt.empty()) fail(ErrorKind::input, "generate", "the prompt is empty, and the model has no token to begin a text with; give some text");
  if (static_cast<int64_t>(prompt.size()) >= context_) fail(ErrorKind::too_long, "generate", "the prompt has " + std::to_string(prompt.size()) + " tokens, the context is " + std::to_string(context_) + "; shorten it, or open the model with a larger one");
  for (const int32_t id : prompt)
    if (id < 0 || id >= runner_.limits().ids) fail(ErrorKind::format, "tokenizer", "has ids that the model does not have: " + std::to_string(id));
}

Generated Generator::run(Writing& writing, const Asked& asked, const std::atomic<bool>& cancelled) {
  Runner& runner = adapters_.runner(asked.adapter);
  for (Step step; writing.next(step);) {
    if (cancelled.load(std::memory_order_relaxed)) return writing.cancel();
    std::vector<float> logits = runner.run(step, "logits");
    if (cancelled.load(std::memory_order_relaxed)) return writing.cancel();
    writing.take(logits);
  }
  return writing.done();
}

}  // namespace weft::host
