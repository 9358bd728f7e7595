// pool_back: what each token of a sequence has of the gradient at its row of pool.
//
// Meaning  weft/ops/backward.py
// Layout   grad [B, D], x, y [T, D] contiguous; segments i32 [B+1]
// Method   a task is one sequence; the largest of a channel is the first of equals
// Bound    memory, 4 bytes per element of y, and of x for the largest
#include "kernels/rows.h"

namespace weft::ISA {

// What token `t` of `tokens` counts for in the sum that a mean is.
static float share(PoolMode mode, int64_t t, int64_t tokens) {
  const float count = static_cast<float>(tokens);
  if (mode == PoolMode::first) return t == 0 ? 1.0f : 0.0f;
  if (mode == PoolMode::last) return t == tokens - 1 ? 1.0f : 0.0f;
  if (mode == PoolMode::weightedmean) return static_cast<float>(t + 1) / (count * (count + 1) / 2);
  return 1.0f / (mode == PoolMode::mean_sqrt_len ? __builtin_sqrtf(count) : count);
}

KERNEL(pool_back) {
  const int64_t batch = call.in[0].rows(), dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>();
  const int32_t* segments = call.in[2].as<int32_t>();
  float* y = call.out[0].as<float>();
  const PoolMode mode = static_cast<PoolMode>(call.integer("mode"));
  for (int64_t b; (b = worker.next(batch)) < batch;) {
    const int64_t first = segments[b], tokens = segments[b + 1] - first;
    const float* row = grad + b * dim;
    for (int64_t t = 0; t < tokens; ++t) {
      float* to = y + (first + t) * dim;
      const f32x16 by = splat(mode == PoolMode::max ? 0.0f : share(mode, t, tokens));
      fill(to, dim, [&](auto at) { return at(row) * by; });
    }
    if (mode != PoolMode::max) continue;
    for (int64_t channel = 0; channel < dim; ++channel) {
      int64_t best = first;
      for (int64_t t = first + 1; t < first + tokens; ++t)
        if (x[t * dim + channel] > x[best * dim + channel]) best = t;
      y[best * dim + channel] = row[channel];
    }
  }
}

}  // namespace weft::ISA
