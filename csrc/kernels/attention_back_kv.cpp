// attention_back_kv: the gradients at keys and values.
//
// Meaning  weft/ops/attention_backward.py
// Layout   grad, q [T, H, D], k, v, to_k, to_v [T, G, D], sums, means [T, H] contiguous; segments i32 [B+1];
//          bias and buckets as in attention, or absent; draws i32 [T, 3] of attention_dropped, or absent
// Method   a task is a block of key rows of one key head; for each query head that reads it, the weights and their
//          gradients of all queries that see one of the keys lie in scratch; products are chains over channels or queries
// Bound    arithmetic: four products
#include "kernels/attention_gradient.h"

namespace weft::ISA {

KERNEL(attention_back_kv) {
  const int64_t heads = call.in[1].dim[1], dim = call.in[1].dim[2], groups = call.in[2].dim[1];
  const float *grad = call.in[0].as<float>(), *q = call.in[1].as<float>();
  const float *k = call.in[2].as<float>(), *v = call.in[3].as<float>();
  const float *sums = call.in[4].as<float>(), *means = call.in[5].as<float>();
  const int32_t* segments = call.in[6].as<int32_t>();
  Distances distances(optional(call, 7), optional(call, 8));
  const Drops drops(optional(call, 9), call.number("rate"), call.integer("site"));
  float *to_k = call.out[0].as<float>(), *to_v = call.out[1].as<float>();
  const Scores scores(call.number("scale"), call.number("softcap"));
  const int64_t across = heads * dim, stride = groups * dim, turning = kTurned * dim + 2 * kTurned;
  const int64_t kept = turning + distances.size();
  float *turned = reinterpret_cast<float*>(worker.scratch), *sum_of = turned + kTurned * dim, *mean_of = sum_of + kTurned;
  deal_blocks(worker, segments, call.in[6].size() - 1, groups, kept, [&](int64_t b, int64_t group, int64_t first, int64_t rows) {
    const int64_t start = segments[b], length = segments[b + 1] - start;
    const Seen seen{call.flag("causal"), call.integer("window"), length};
    const int64_t low = seen.query_low(first), high = seen.query_high(first + rows - 1), count = high - low;
    float *weights = turned + kept, *slopes = weights + rows * count;
    const int64_t at = (start + first) * stride + group * dim;
    for (int64_t r = 0; r < rows; ++r) clear(to_k + at + r * stride, dim), clear(to_v + at + r * stride, dim);
    for (int64_t head = group * (heads / groups); head < (group + 1) * (heads / groups); ++head) {
      const int64_t queries = (start + low) * across + head * dim;
      if (distances.any()) distances.fill(turned + turning, head);
      all_dots(weights, count, rows, {k + at, stride, 1}, q + queries, across, count, dim, turned);
      all_dots(slopes, count, rows, {v + at, stride, 1}, grad + queries, across, count, dim, turned);
      for (int64_t j = 0; j < count; j += kTurned) {
        const int64_t here = smaller(kTurned, count - j);
        for (int64_t i = 0; i < here; ++i) {
          sum_of[i] = sums[(start + low + j + i) * heads + head];
          mean_of[i] = means[(start + low + j + i) * heads + head];
        }
        alignas(64) float factors[kMostRows * kTurned];
        if (drops.any()) drops.columns(factors, first, rows, start + low + j, here, head);
        for (int64_t r = 0; r < rows; ++r) {
          float *row = weights + r * count + j, *to_row = slopes + r * count + j;
          for (int64_t i = 0; i < here; i += 16) {
            const int64_t n = smaller(16, here - i);
            const f32x16 score = scores.score(load_n(row + i, n));
            const f32x16 biased = distances.any() ? score + distances.of_queries(first + r, low + j + i) : score;
            const f32x16 weight = exp(biased - load_n(sum_of + i, n));
            f32x16 slope = load_n(to_row + i, n), seen = weight;
            if (drops.any()) {
              const f32x16 factor = load_n(factors + r * kTurned + i, n);
              slope = slope * factor, seen = seen * factor;
            }
            store_n(to_row + i, weight * (slope - load_n(mean_of + i, n)) * scores.slope(score), n);
            store_n(row + i, seen, n);
          }
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = seen.query_low(first + r) - low, to = seen.query_high(first + r) - low;
        for (float* row : {weights + r * count, slopes + r * count}) clear(row, from), clear(row + to, count - to);
      }
      add_product(to_v + at, stride, rows, dim, {weights, count, 1}, grad + queries, across, count);
      add_product(to_k + at, stride, rows, dim, {slopes, count, 1}, q + queries, across, count);
    }
  });
}

}  // namespace weft::ISA
