#include "capi/embedder.h"

#include <algorithm>

#include "core/error.h"

namespace weft::host {

namespace {

constexpr int64_t kBatchTokens = 512;  // as in weft/embed/service.py
constexpr int64_t kMaxTokens = 1 << 20;

int64_t checked_tokens(json::Value about) {
  const int64_t tokens = about.at("max_tokens").integer();
  if (tokens < 3 || tokens > kMaxTokens) fail(ErrorKind::format, bundle::kManifest, "max_tokens must be 3 to " + std::to_string(kMaxTokens));
  return tokens;
}

}  // namespace

Embedder::Embedder(const bundle::Bundle& bundle, const text::Tokenizer& tokenizer, const Level& level, Pool& pool, int64_t step_tokens)
    : tokenizer_(tokenizer),
      runner_(bundle, "vectors", level, pool, std::max(kBatchTokens, checked_tokens(bundle.manifest().at("embed"))), step_tokens == 0),
      adapters_(bundle, runner_, "vectors_adapted"),
      pooling_(bundle.manifest().at("embed").at("pooling").string()),
      skips_(bundle.manifest().at("embed").at("skips").boolean()),
      dimension_(runner_.columns("vectors", true)),
      max_tokens_(checked_tokens(bundle.manifest().at("embed"))),
      batch_tokens_(step_tokens ? step_tokens : kBatchTokens) {
  for (const auto& [role, prompt] : bundle.manifest().at("embed").at("prompts").members()) prompts_.emplace(role, prompt.string());
  if (max_tokens_ > runner_.limits().positions) fail(ErrorKind::format, bundle::kManifest, "max_tokens is more than the model has positions");
  if (!step_tokens) runner_.start(0);
}

std::string Embedder::prompt_of(std::optional<std::string_view> role) const {
  const auto found = prompts_.find(std::string(role.value_or("")));
  if (found != prompts_.end()) return found->second;
  if (!role || *role == "query" || *role == "document") return "";
  fail(ErrorKind::not_found, "embed", "the model has no prompt called " + std::string(*role));
}

Embedder::Tokens Embedder::tokens_of(std::string_view text, size_t index, const std::string& prompt, bool truncate) const {
  Tokens tokens;
  tokens.ids = tokenizer_.encode(prompt.empty() ? std::string(text) : prompt + std::string(text), true, text::Parse::ordinary);
  if (static_cast<int64_t>(tokens.ids.size()) > max_tokens_) {
    if (!truncate)
      fail(ErrorKind::too_long, "embed", "text " + std::to_string(index) + " has " + std::to_string(tokens.ids.size()) + " tokens, the model takes " + std::to_string(max_tokens_) + "; shorten it, or set truncate");
    // The special tokens behind the text stay, the text loses its end.
    size_t behind = 0;
    const text::Template& around = tokenizer_.around(false);
    for (auto part = around.rbegin(); part != around.rend() && part->kind == text::Part::Kind::token; ++part) ++behind;
    const size_t kept = static_cast<size_t>(max_tokens_) - std::min(behind, static_cast<size_t>(max_tokens_));
    tokens.ids.erase(tokens.ids.begin() + static_cast<ptrdiff_t>(kept), tokens.ids.end() - static_cast<ptrdiff_t>(behind));
  }
  for (const int32_t id : tokens.ids)
    if (id < 0 || id >= runner_.limits().ids) fail(ErrorKind::format, "tokenizer", "has ids that the model does not have: " + std::to_string(id));
  if (skips_ && !prompt.empty()) {
    const text::Ids before = tokenizer_.encode(prompt, true, text::Parse::all);
    tokens.skip = static_cast<int32_t>(before.size()) - (!before.empty() && tokenizer_.is_special(before.back()));
  }
  return tokens;
}

Step Embedder::step_of(const std::vector<Tokens>& batch, const Held& adapter) const {
  Step step;
  step.segments.push_back(0);
  step.spans.push_back(0);
  const bool spans = runner_.reads("spans"), single = pooling_ == "first" || pooling_ == "last";
  for (const Tokens& tokens : batch) {
    const auto size = static_cast<int32_t>(tokens.ids.size()), start = step.segments.back();
    if (single && !size) fail(ErrorKind::input, "embed", "an empty text has no token to pool; give some text");
    step.ids.insert(step.ids.end(), tokens.ids.begin(), tokens.ids.end());
    for (int32_t i = 0; i < size; ++i) step.positions.push_back(i);
    step.segments.push_back(start + size);
    const int32_t skip = std::clamp(tokens.skip, 0, std::max(size - 1, 0));
    if (single) step.rows.push_back(pooling_ == "first" ? start + skip : start + size - 1);
    else if (spans)
      for (int32_t i = skip; i < size; ++i) step.rows.push_back(start + i);
    step.spans.push_back(static_cast<int32_t>(step.rows.size()));
  }
  step.types.assign(step.ids.size(), 0);
  step.adapters.assign(batch.size(), adapter ? adapter->index() : 0);
  return step;
}

Embedder::Batches::Batches(const Embedder& embedder, std::vector<std::string_view> texts, const EmbedRules& rules)
    : embedder_(embedder), texts_(std::move(texts)), prompt_(embedder.prompt_of(rules.role)), truncate_(rules.truncate), adapter_(rules.adapter) {}

bool Embedder::Batches::next(Step& step) {
  std::vector<Tokens> batch;
  int64_t held = 0;
  for (; at_ < texts_.size(); ++at_) {
    if (!first_) first_ = embedder_.tokens_of(texts_[at_], at_, prompt_, truncate_);
    const auto size = static_cast<int64_t>(first_->ids.size());
    if (!batch.empty() && (held + size > embedder_.batch_tokens_ || static_cast<int64_t>(batch.size()) >= embedder_.batch_tokens_)) break;
    batch.push_back(std::move(*first_));
    first_.reset();
    held += size;
  }
  if (batch.empty()) return false;
  step = embedder_.step_of(batch, adapter_);
  return true;
}

bool Embedder::embed(const std::vector<std::string_view>& texts, const EmbedRules& rules, const std::atomic<bool>& cancelled, float* vectors) {
  Runner& runner = adapters_.runner(rules.adapter);
  Batches batches(*this, texts, rules);
  for (Step step; batches.next(step);) {
    if (cancelled.load(std::memory_order_relaxed)) return false;
    const std::vector<float> found = runner.run(step, "vectors");
    if (found.size() != (step.segments.size() - 1) * static_cast<size_t>(dimension_)) fail(ErrorKind::format, bundle::kManifest, "the program pools otherwise than the manifest says");
    vectors = std::copy(found.begin(), found.end(), vectors);
  }
  return true;
}

}  // namespace weft::host
