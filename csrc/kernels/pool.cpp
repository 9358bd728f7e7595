// pool: one row per sequence: a mean (plain, over the root of the length, weighted), the first, last or largest of its rows.
//
// Meaning  weft/ops/reduce.py
// Layout   x [T, D], y [B, D] contiguous; segments i32 [B+1]; y is not x; a sequence without tokens gives zeros
// Method   per channel one chain in token order; means then divide once. A task is a strip of one row of y.
// Bound    memory, 4 bytes per element of x
#include "kernels/rows.h"

namespace weft::ISA {

constexpr int64_t kStrip = 256;  // channels per task: the running row stays in L1

// The divisor of a sum over this many tokens.
static float divisor(PoolMode mode, int64_t tokens) {
  const float count = static_cast<float>(tokens);
  if (mode == PoolMode::mean_sqrt_len) return __builtin_sqrtf(count);
  return mode == PoolMode::weightedmean ? count * (count + 1) / 2 : count;
}

static void pool_strip(float* to, const float* x, int64_t tokens, int64_t dim, int64_t n, PoolMode mode) {
  if (tokens == 0) return fill(to, n, [](auto) { return zero(); });
  const float* start = mode == PoolMode::last ? x + (tokens - 1) * dim : x;
  fill(to, n, [&](auto at) { return at(start); });
  if (mode == PoolMode::first || mode == PoolMode::last) return;
  for (int64_t t = 1; t < tokens; ++t) {
    const float* row = x + t * dim;
    if (mode == PoolMode::max)
      fill(to, n, [&](auto at) { return max(at(to), at(row)); });
    else if (mode == PoolMode::weightedmean)
      fill(to, n, [&](auto at) { return fma(at(row), splat(static_cast<float>(t + 1)), at(to)); });
    else
      fill(to, n, [&](auto at) { return at(to) + at(row); });
  }
  if (mode != PoolMode::max) fill(to, n, [&](auto at) { return at(to) / splat(divisor(mode, tokens)); });
}

KERNEL(pool) {
  const int64_t batch = call.out[0].rows(), dim = call.out[0].cols();
  const float* x = call.in[0].as<float>();
  const int32_t* segments = call.in[1].as<int32_t>();
  float* y = call.out[0].as<float>();
  const PoolMode mode = static_cast<PoolMode>(call.integer("mode"));
  const int64_t strips = (dim + kStrip - 1) / kStrip;
  for (int64_t task; (task = worker.next(batch * strips)) < batch * strips;) {
    const int64_t b = task / strips, channel = task % strips * kStrip;
    pool_strip(y + b * dim + channel, x + segments[b] * dim + channel, segments[b + 1] - segments[b], dim,
               smaller(kStrip, dim - channel), mode);
  }
}

}  // namespace weft::ISA
