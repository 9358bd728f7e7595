// attention_dropped: every token attends to its own sequence, and some of its weights are left out.
//
// Meaning  weft/ops/dropout.py
// Layout   q, out [T, H, D], k, v [T, G, D] contiguous; segments i32 [B+1]; draws i32 [T, 3]; bias and buckets as in
//          attention, or absent; out is none of them
// Method   as attention_back_q: a task is a block of query rows of one head, whose weights lie in scratch
// Bound    arithmetic: two products
#include "kernels/attention_gradient.h"

namespace weft::ISA {

KERNEL(attention_dropped) {
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], groups = call.in[1].dim[1];
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const int32_t* segments = call.in[3].as<int32_t>();
  const Drops drops(call.in + 4, call.number("rate"), call.integer("site"));
  Distances distances(optional(call, 5), optional(call, 6));
  float* out = call.out[0].as<float>();
  const f32x16 scale = splat(static_cast<float>(call.number("scale")));
  const int64_t across = heads * dim, stride = groups * dim, kept = kTurned * dim + distances.size();
  float* turned = reinterpret_cast<float*>(worker.scratch);
  deal_blocks(worker, segments, call.in[3].size() - 1, heads, kept, [&](int64_t b, int64_t head, int64_t first, int64_t rows) {
    const int64_t start = segments[b], length = segments[b + 1] - start;
    float* weights = turned + kept;
    const int64_t at = (start + first) * across + head * dim, keys = start * stride + head / (heads / groups) * dim;
    all_dots(weights, length, rows, {q + at, across, 1}, k + keys, stride, length, dim, turned);
    if (distances.any()) distances.fill(turned + kTurned * dim, head);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = weights + r * length;
      fill(row, length, [&](auto lane) { return lane(row) * scale; });
      if (distances.any())
        for (int64_t i = 0; i < length; i += 16) {
          const int64_t here = smaller(16, length - i);
          store_n(row + i, load_n(row + i, here) + distances.of_keys(first + r, i), here);
        }
      const f32x16 top = splat(max_lane(fold(length, splat(-INFINITY), [&](auto lane, f32x16 acc) {
        return max(acc, lane.or_else(lane(row), acc));
      })));
      fill(row, length, [&](auto lane) { return exp(lane(row) - top); });
      const f32x16 by = splat(1.0f / sum(fold(length, zero(), [&](auto lane, f32x16 acc) {
        return acc + lane.or_else(lane(row), zero());
      })));
      fill(row, length, [&](auto lane) { return lane(row) * by; });
      drops.apply(row, length, start + first + r, head);
      clear(out + at + r * across, dim);
    }
    add_product(out + at, across, rows, dim, {weights, length, 1}, v + keys, stride, length);
  });
}

}  // namespace weft::ISA
