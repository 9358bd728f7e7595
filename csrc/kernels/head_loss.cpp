// head_loss: the loss of each row over the vocabulary, and its gradient at the row, without storing logits.
//
// Meaning  weft/ops/training.py
// Layout   x, y [L, K], targets i32 [L], shares, loss [L] contiguous; W [V, K] of any type, as the file has it or in panels
// Method   a task takes up to 256 rows and goes through W twice, 64 words at a time: for the sum of e^logit, then for the
//          gradient. A logit is one chain over K, as in matmul; a gradient one chain over V
// Bound    arithmetic: three products with W
#include <cmath>

#include "kernels/head_logits.h"

namespace weft::ISA {

KERNEL(head_loss) {
  const Weight& weight = *call.in[1].weight;
  const int64_t rows = call.in[0].rows(), depth = call.in[0].cols(), vocabulary = weight.rows;
  const float *x = call.in[0].as<float>(), *shares = call.in[3].as<float>();
  const int32_t* targets = call.in[2].as<int32_t>();
  float *loss = call.out[0].as<float>(), *y = call.out[1].as<float>();
  const float scale = static_cast<float>(call.number("scale")), cap = static_cast<float>(call.number("softcap"));
  float* scratch = reinterpret_cast<float*>(worker.scratch);
  float *highest = scratch, *total = highest + kMostRows, *wanted = total + kMostRows, *logits = wanted + kMostRows;
  float* tile = logits + kMostRows * kWords;  // WeightRows::kTileBytes, which a panel's columns fit in too
  static_assert(WeightRows::kTileBytes >= (kPanels * 16 + 1) * kDepth * int64_t{sizeof(float)});
  const Head head{weight, splat(scale), splat(cap), cap > 0, logits, reinterpret_cast<std::byte*>(tile)};
  const WeightRows source{weight, 0, tile};
  const int64_t share = rows_per_task(rows, worker.count, 8, kMostRows), tasks = (rows + share - 1) / share;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t first = task * share, count = smaller(share, rows - first);
    for (int64_t r = 0; r < count; ++r) highest[r] = -INFINITY, total[r] = 0, wanted[r] = 0;
    for (int64_t word = 0; word < vocabulary; word += kWords) {
      const int64_t here = smaller(kWords, vocabulary - word);
      head.compute(x + first * depth, count, word, here);
      for (int64_t r = 0; r < count; ++r) {
        const float* row = logits + r * kWords;
        const float top = max_lane(fold(here, splat(highest[r]), [&](auto at, f32x16 acc) {
          return max(acc, at.or_else(at(row), acc));
        }));
        const f32x16 level = splat(top);
        const float added = sum(fold(here, zero(), [&](auto at, f32x16 acc) {
          return acc + at.or_else(exp(at(row) - level), zero());
        }));
        total[r] = total[r] * (highest[r] == top ? 1.0f : std::exp(highest[r] - top)) + added;
        highest[r] = top;
        const int64_t target = targets[first + r] - word;
        if (target >= 0 && target < here) wanted[r] = row[target];
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      highest[r] += static_cast<float>(std::log(static_cast<double>(total[r])));  // the logarithm of the sum
      loss[first + r] = shares[first + r] * (highest[r] - wanted[r]);
    }
    clear(y + first * depth, count * depth);
    for (int64_t word = 0; word < vocabulary; word += kWords) {
      const int64_t here = smaller(kWords, vocabulary - word);
      head.compute(x + first * depth, count, word, here);
      for (int64_t r = 0; r < count; ++r) {
        float* row = logits + r * kWords;
        const f32x16 level = splat(highest[r]), by = splat(shares[first + r] * scale);
        const int64_t target = targets[first + r] - word;
        const bool mine = target >= 0 && target < here;
        const float raw = mine ? row[target] : 0.0f;
        fill(row, here, [&](auto at) {
          const f32x16 logit = at(row), part = logit / head.cap;
          const f32x16 chance = exp(logit - level) * by;
          return head.capped ? chance * (splat(1.0f) - part * part) : chance;
        });
        if (mine) row[target] -= shares[first + r] * scale * (cap > 0 ? 1.0f - raw / cap * (raw / cap) : 1.0f);
      }
      for (int64_t k = 0; k < depth; k += kDepth) {
        const int64_t wide = smaller(kDepth, depth - k);
        const auto [from, stride] = source.read(word, here, k, wide);
        add_product(y + first * depth + k, depth, count, wide, {logits, kWords, 1}, from, stride, here);
      }
    }
  }
}

}  // namespace weft::ISA
