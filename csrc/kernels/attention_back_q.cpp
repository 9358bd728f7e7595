// attention_back_q: the gradient at the queries; of each softmax the log of its sum, and the mean gradient at its weights.
//
// Meaning  weft/ops/attention_backward.py
// Layout   grad, q, to_q [T, H, D], k, v [T, G, D], sums, means [T, H] contiguous; segments i32 [B+1]; sinks [H], bias and
//          buckets as in attention, or absent; draws i32 [T, 3] of attention_dropped, or absent
// Method   a task is a block of query rows of one head: all its scores, and gradients at weights, lie in scratch; products
//          are chains over channels or keys, sums over keys 16 lanes and the fixed tree
// Bound    arithmetic: three products
#include <cmath>

#include "kernels/attention_gradient.h"

namespace weft::ISA {

KERNEL(attention_back_q) {
  const int64_t heads = call.in[1].dim[1], dim = call.in[1].dim[2], groups = call.in[2].dim[1];
  const float *grad = call.in[0].as<float>(), *q = call.in[1].as<float>();
  const float *k = call.in[2].as<float>(), *v = call.in[3].as<float>();
  const int32_t* segments = call.in[4].as<int32_t>();
  const float* sinks = optional(call, 5) ? call.in[5].as<float>() : nullptr;
  Distances distances(optional(call, 6), optional(call, 7));
  const Drops drops(optional(call, 8), call.number("rate"), call.integer("site"));
  float *to_q = call.out[0].as<float>(), *sums = call.out[1].as<float>(), *means = call.out[2].as<float>();
  const Scores scores(call.number("scale"), call.number("softcap"));
  const int64_t across = heads * dim, stride = groups * dim, kept = kTurned * dim + distances.size();
  float* turned = reinterpret_cast<float*>(worker.scratch);
  deal_blocks(worker, segments, call.in[4].size() - 1, heads, kept, [&](int64_t b, int64_t head, int64_t first, int64_t rows) {
    const int64_t start = segments[b], length = segments[b + 1] - start;
    const Seen seen{call.flag("causal"), call.integer("window"), length};
    const int64_t low = seen.key_low(first), high = seen.key_high(first + rows - 1), count = high - low;
    float *weights = turned + kept, *slopes = weights + rows * count;
    const int64_t group = head / (heads / groups), at = (start + first) * across + head * dim;
    const int64_t keys = (start + low) * stride + group * dim;
    all_dots(weights, count, rows, {q + at, across, 1}, k + keys, stride, count, dim, turned);
    all_dots(slopes, count, rows, {grad + at, across, 1}, v + keys, stride, count, dim, turned);
    if (distances.any()) distances.fill(turned + kTurned * dim, head);
    for (int64_t r = 0; r < rows; ++r) {
      float *row = weights + r * count, *to_row = slopes + r * count;
      if (drops.any()) drops.apply(to_row, count, start + first + r, head);
      const int64_t from = seen.key_low(first + r) - low, to = seen.key_high(first + r) - low, n = to - from;
      fill(row + from, n, [&](auto at) { return scores.score(at(row + from)); });
      if (distances.any())
        for (int64_t i = 0; i < n; i += 16) {
          const int64_t here = smaller(16, n - i);
          store_n(row + from + i, load_n(row + from + i, here) + distances.of_keys(first + r, low + from + i), here);
        }
      const float sink = sinks ? sinks[head] : -INFINITY;
      const float top = max_lane(fold(n, splat(sink), [&](auto at, f32x16 acc) {
        return max(acc, at.or_else(at(row + from), acc));
      }));
      const f32x16 highest = splat(top);
      // e^score replaces the score, unless that is wanted once more: for the slope of a cap.
      const auto power = [&](f32x16 kept) { return scores.capped ? exp(kept - highest) : kept; };
      if (!scores.capped) fill(row + from, n, [&](auto at) { return exp(at(row + from) - highest); });
      const float of_keys = sum(fold(n, zero(), [&](auto at, f32x16 acc) {
        return acc + at.or_else(power(at(row + from)), zero());
      }));
      const float total = sinks ? of_keys + std::exp(sink - top) : of_keys;  // a sink has a weight and no value
      const f32x16 by = splat(1.0f / total);
      const float mean = sum(fold(n, zero(), [&](auto at, f32x16 acc) {
        return fma(at.or_else(power(at(row + from)), zero()) * by, at(to_row + from), acc);
      }));
      const f32x16 level = splat(mean);
      const auto through = [&](f32x16 kept, f32x16 slope, f32x16 capped) {
        return power(kept) * by * (slope - level) * scores.slope(capped);
      };
      if (!scores.capped || !distances.any())
        fill(row + from, n, [&](auto at) { return through(at(row + from), at(to_row + from), at(row + from)); });
      else
        for (int64_t i = 0; i < n; i += 16) {
          const int64_t here = smaller(16, n - i);
          const f32x16 score = load_n(row + from + i, here), capped = score - distances.of_keys(first + r, low + from + i);
          store_n(row + from + i, through(score, load_n(to_row + from + i, here), capped), here);
        }
      clear(row, from);
      clear(row + to, count - to);
      const int64_t token = start + first + r;
      sums[token * heads + head] = top + static_cast<float>(std::log(static_cast<double>(total)));
      means[token * heads + head] = mean;
      clear(to_q + token * across + head * dim, dim);
    }
    add_product(to_q + at, across, rows, dim, {weights, count, 1}, k + keys, stride, count);
  });
}

}  // namespace weft::ISA
