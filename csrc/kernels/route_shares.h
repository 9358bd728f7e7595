// route_shares: the shares of experts from a token's scores.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

namespace {

// The shares [E] of one token's scores: the sigmoid of each, or their softmax.
void read_scores(const float* scores, int64_t experts, bool logistic, float* shares) {
  if (logistic) return fill(shares, experts, [&](auto at) { return sigmoid(at(scores)); });
  const f32x16 lowest = splat(-__builtin_inff());
  const f32x16 top = splat(max_lane(fold(experts, lowest, [&](auto at, f32x16 acc) { return max(acc, at.or_else(at(scores), lowest)); })));
  fill(shares, experts, [&](auto at) { return exp_negative(at(scores) - top); });
  const f32x16 total = splat(sum(fold(experts, zero(), [&](auto at, f32x16 acc) { return acc + at(shares); })));
  fill(shares, experts, [&](auto at) { return at(shares) / total; });
}

}  // namespace

}  // namespace weft::ISA
