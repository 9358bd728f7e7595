// route: each token's `top` experts and the weights of their results.
//
// Meaning  weft/ops/experts.py
// Layout   scores f32 [T, E], bias f32 [E] or absent; chosen i32 [T, top], weights f32 [T, top] contiguous
// Method   a row at a time: scores as softmax or sigmoid in scratch, then the largest, `top` times; the first of equals
// Bound    arithmetic: E exponentials and top E comparisons a token
#include "kernels/route_shares.h"

namespace weft::ISA {

namespace {

constexpr int64_t kMostExperts = int64_t{kScratchBytes} / 16;

// The first of the largest that are not taken yet; it exists, whatever the numbers are.
int64_t largest(const float* ranks, const std::byte* taken, int64_t experts) {
  int64_t best = -1;
  for (int64_t e = 0; e < experts; ++e)
    if (taken[e] == std::byte{0} && (best < 0 || ranks[e] > ranks[best])) best = e;
  return best;
}

}  // namespace

KERNEL(route) {
  const int64_t experts = call.in[0].cols(), top = call.out[0].cols();
  const float *scores = call.in[0].as<float>(), *bias = call.n_in > 1 ? call.in[1].as<float>() : nullptr;
  int32_t* chosen = call.out[0].as<int32_t>();
  float* weights = call.out[1].as<float>();
  const bool logistic = call.flag("sigmoid"), normalise = call.flag("normalise");
  const float scale = static_cast<float>(call.number("scale")), eps = static_cast<float>(call.number("eps"));
  if (experts > kMostExperts) __builtin_trap();  // the op's shape rule refuses it
  float *shares = reinterpret_cast<float*>(worker.scratch), *ranks = shares + experts;
  std::byte* taken = reinterpret_cast<std::byte*>(ranks + experts);
  deal_rows(worker, call.in[0].rows(), experts * (2 + top), [&](int64_t row) {
    const float* given = scores + row * experts;
    read_scores(given, experts, logistic, shares);
    if (bias) fill(ranks, experts, [&](auto at) { return at(shares) + at(bias); });
    else fill(ranks, experts, [&](auto at) { return at(given); });
    for (int64_t e = 0; e < experts; ++e) taken[e] = std::byte{0};
    float total = 0;
    for (int64_t k = 0; k < top; ++k) {
      const int64_t best = largest(ranks, taken, experts);
      taken[best] = std::byte{1};
      chosen[row * top + k] = static_cast<int32_t>(best);
      weights[row * top + k] = shares[best];
      total += shares[best];
    }
    const float factor = normalise ? scale / (total + eps) : scale;
    for (int64_t k = 0; k < top; ++k) weights[row * top + k] *= factor;
  });
}

}  // namespace weft::ISA
