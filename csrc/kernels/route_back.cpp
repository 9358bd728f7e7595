// route_back: the gradient at a token's scores, from that at the weights of its chosen experts.
//
// Meaning  weft/ops/experts_backward.py
// Layout   grad f32 [T, top], scores f32 [T, E], chosen i32 [T, top], y f32 [T, E] contiguous
// Method   a row at a time: its shares in scratch, the gradients at the chosen ones, then softmax's or sigmoid's slope
// Bound    arithmetic: E exponentials a token
#include "kernels/route_shares.h"

namespace weft::ISA {

KERNEL(route_back) {
  const int64_t experts = call.in[1].cols(), top = call.in[2].cols();
  const float *grad = call.in[0].as<float>(), *scores = call.in[1].as<float>();
  const int32_t* chosen = call.in[2].as<int32_t>();
  float* y = call.out[0].as<float>();
  const bool logistic = call.flag("sigmoid"), normalise = call.flag("normalise");
  const float scale = static_cast<float>(call.number("scale")), eps = static_cast<float>(call.number("eps"));
  float *shares = reinterpret_cast<float*>(worker.scratch), *slopes = shares + experts;  // [E], [top]
  deal_rows(worker, call.in[1].rows(), experts * 2, [&](int64_t row) {
    const int32_t* mine = chosen + row * top;
    const auto expert_of = [&](int64_t k) {  // one that exists, whatever was given
      return mine[k] < 0 ? 0 : mine[k] < experts ? mine[k] : static_cast<int32_t>(experts - 1);
    };
    float* to = y + row * experts;
    read_scores(scores + row * experts, experts, logistic, shares);
    float total = eps, weighted = 0;
    for (int64_t k = 0; k < top; ++k) {
      slopes[k] = grad[row * top + k] * scale;
      total += shares[expert_of(k)];
      weighted += slopes[k] * shares[expert_of(k)];
    }
    if (normalise) {
      const float mean = weighted / total;
      weighted = 0;
      for (int64_t k = 0; k < top; ++k) {
        slopes[k] = (slopes[k] - mean) / total;
        weighted += slopes[k] * shares[expert_of(k)];
      }
    }
    const f32x16 by = splat(logistic ? 0.0f : -weighted);
    fill(to, experts, [&](auto at) { return at(shares) * by; });
    for (int64_t k = 0; k < top; ++k) {
      const float share = shares[expert_of(k)];
      to[expert_of(k)] = logistic ? slopes[k] * share * (1.0f - share) : share * (slopes[k] - weighted);
    }
  });
}

}  // namespace weft::ISA
