#include "capi/choosing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"

namespace weft::host {

namespace {

constexpr double kLargest = std::numeric_limits<float>::max();
constexpr size_t kSmall = 2048;  // up to this many candidates are all sorted; of more, only the head that can be drawn
constexpr float kHeads[] = {0.2f, 0.05f, 1e-2f, 2e-3f, 1e-4f, 1e-6f, 1e-9f, 1e-15f};  // where a head may end: weights

void need(bool condition, const char* what) {
  if (!condition) fail(ErrorKind::input, "sampling", what);
}

// Output `index` of splitmix64 from `seed`, 53 bits of it.
double uniform(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

std::vector<int32_t> all_of(size_t count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

float at(const std::vector<float>& logits, int32_t id) { return logits[static_cast<size_t>(id)]; }

}  // namespace

Chooser::Chooser(const Sampling& sampling, std::span<const int32_t> prompt) : rules_(sampling) {
  need(std::isfinite(sampling.temperature) && sampling.temperature >= 0, "temperature must be a finite number of at least 0");
  need(sampling.top_p >= 0 && sampling.top_p <= 1, "top_p must be a number from 0 to 1");
  need(sampling.min_p >= 0 && sampling.min_p <= 1, "min_p must be a number from 0 to 1");
  need(std::isfinite(sampling.repetition_penalty) && sampling.repetition_penalty > 0, "repetition_penalty must be a finite number above 0");
  need(sampling.top_k >= 0, "top_k must be at least 0, which is off");
  if (sampling.repetition_penalty != 1) seen_.insert(prompt.begin(), prompt.end());
}

void Chooser::note(int32_t token) {
  if (rules_.repetition_penalty != 1) seen_.insert(token);
}

int32_t Chooser::choose(std::vector<float>& logits) {
  for (const float x : logits)
    if (!std::isfinite(x)) fail(ErrorKind::weight, "generate", "the model's logits are not finite numbers; check its weights, or export it with --compute f32");
  for (const int32_t id : seen_) {
    if (static_cast<size_t>(id) >= logits.size()) continue;  // an id that is read and never given
    float& x = logits[static_cast<size_t>(id)];
    const double wide = x, penalty = rules_.repetition_penalty;
    x = static_cast<float>(std::clamp(wide > 0 ? wide / penalty : wide * penalty, -kLargest, kLargest));
  }
  const uint64_t index = index_++;
  if (rules_.temperature == 0) return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  return draw(logits, uniform(rules_.seed, index));
}

int32_t Chooser::draw(const std::vector<float>& logits, double r) const {
  const float top = *std::max_element(logits.begin(), logits.end());
  auto [ids, beyond] = candidates(logits, top, r);
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return at(logits, a) > at(logits, b) || (at(logits, a) == at(logits, b) && a < b); });
  std::vector<double> sums;
  double total = 0;
  for (const int32_t id : ids) {
    const double weight = std::exp((static_cast<double>(at(logits, id)) - top) / rules_.temperature);
    if (rules_.min_p > 0 && weight < rules_.min_p) break;
    sums.push_back(total += weight);
  }
  size_t last = sums.size() - 1;
  total += beyond;
  if (rules_.top_p < 1) {
    last = std::min(static_cast<size_t>(std::lower_bound(sums.begin(), sums.end(), rules_.top_p * total) - sums.begin()), last);
    total = sums[last];
  }
  const auto drawn = static_cast<size_t>(std::upper_bound(sums.begin(), sums.end(), r * total) - sums.begin());
  return ids[std::min(drawn, last)];
}

Chooser::Candidates Chooser::candidates(const std::vector<float>& logits, float top, double r) const {
  const auto count = static_cast<size_t>(rules_.top_k);
  if (count > 0 && count < logits.size()) {
    std::vector<int32_t> ids = all_of(logits.size());
    const auto before = [&](int32_t a, int32_t b) { return at(logits, a) > at(logits, b) || (at(logits, a) == at(logits, b) && a < b); };
    std::nth_element(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count), ids.end(), before);
    ids.resize(count);
    return {std::move(ids)};
  }
  if (rules_.min_p > 0) {
    // exp((x - top) / T) >= min_p, solved for x and lowered by more than the comparison can err.
    double bound = top + rules_.temperature * std::log(rules_.min_p);
    bound -= 1e-6 * (1 + std::abs(static_cast<double>(top)) + std::abs(bound));
    Candidates found;
    for (size_t i = 0; i < logits.size(); ++i)
      if (logits[i] >= static_cast<float>(std::max(bound, -kLargest))) found.ids.push_back(static_cast<int32_t>(i));
    return found;
  }
  return head(logits, top, r);
}

// The most probable ids, enough of them for this draw. The tail only contributes to the total: its weight is a sum of float32
// exponentials, as in Python.
Chooser::Candidates Chooser::head(const std::vector<float>& logits, float top, double r) const {
  if (logits.size() <= kSmall || !(rules_.temperature > 1e-6 && rules_.temperature < 1e6)) return {all_of(logits.size())};
  std::vector<float> weights(logits.size());
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) total += weights[i] = std::exp((logits[i] - top) / static_cast<float>(rules_.temperature));
  const double needed = total * (rules_.top_p < 1 ? rules_.top_p : r);
  for (const float least : kHeads) {
    double mass = 0;
    for (const float weight : weights)
      if (weight >= least) mass += weight;
    if (!(mass > needed * (1 + 1e-5))) continue;  // the margin is the error of float32
    Candidates found;
    for (size_t i = 0; i < weights.size(); ++i)
      if (weights[i] >= least) found.ids.push_back(static_cast<int32_t>(i));
    found.beyond = total - mass;
    return found;
  }
  return {all_of(logits.size())};
}

}  // namespace weft::host
