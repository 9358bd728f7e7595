// head_distill: head_loss and, beside it, what a row misses of a teacher's distribution over a few words, at a temperature.
//
// Meaning  weft/ops/training.py
// Layout   x, y [L, K], targets i32 [L], shares, loss [L], words i32 and parts [L, M] contiguous; W [V, K] of any type
// Method   as head_loss, with two sums in the first pass, of e^logit and of e^(logit / temperature), and both gradients in
//          the second. Words outside the block at hand are passed by, so M is meant to be small beside V
// Bound    arithmetic: three products with W
#include <cmath>

#include "kernels/head_logits.h"

namespace weft::ISA {

KERNEL(head_distill) {
  const Weight& weight = *call.in[1].weight;
  const int64_t rows = call.in[0].rows(), depth = call.in[0].cols(), vocabulary = weight.rows, most = call.in[4].cols();
  const float *x = call.in[0].as<float>(), *shares = call.in[3].as<float>(), *parts_of = call.in[5].as<float>();
  const int32_t *targets = call.in[2].as<int32_t>(), *words_of = call.in[4].as<int32_t>();
  float *loss = call.out[0].as<float>(), *y = call.out[1].as<float>();
  const float scale = static_cast<float>(call.number("scale")), cap = static_cast<float>(call.number("softcap"));
  const float cool = static_cast<float>(1.0 / call.number("temperature"));
  float* scratch = reinterpret_cast<float*>(worker.scratch);
  float *highest = scratch, *total = highest + kMostRows, *flat = total + kMostRows, *wanted = flat + kMostRows;
  float *known = wanted + kMostRows, *mass = known + kMostRows, *logits = mass + kMostRows;
  float* tile = logits + kMostRows * kWords;
  static_assert((6 + kWords) * kMostRows * int64_t{sizeof(float)} + WeightRows::kTileBytes <= int64_t{kScratchBytes});
  static_assert(WeightRows::kTileBytes >= (kPanels * 16 + 1) * kDepth * int64_t{sizeof(float)});
  const Head head{weight, splat(scale), splat(cap), cap > 0, logits, reinterpret_cast<std::byte*>(tile)};
  const WeightRows source{weight, 0, tile};
  const f32x16 cooled = splat(cool);
  const int64_t share = rows_per_task(rows, worker.count, 8, kMostRows), tasks = (rows + share - 1) / share;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t first = task * share, count = smaller(share, rows - first);
    for (int64_t r = 0; r < count; ++r) {
      highest[r] = -INFINITY, total[r] = 0, flat[r] = 0, wanted[r] = 0, known[r] = 0, mass[r] = 0;
      for (int64_t m = 0; m < most; ++m) mass[r] += parts_of[(first + r) * most + m];
    }
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
        const float spread = sum(fold(here, zero(), [&](auto at, f32x16 acc) {
          return acc + at.or_else(exp((at(row) - level) * cooled), zero());
        }));
        const float lower = highest[r] - top;  // minus infinity before the first block, where both sums are zero
        total[r] = total[r] * (lower == 0 ? 1.0f : std::exp(lower)) + added;
        flat[r] = flat[r] * (lower == 0 ? 1.0f : std::exp(lower * cool)) + spread;
        highest[r] = top;
        const int64_t target = targets[first + r] - word;
        if (target >= 0 && target < here) wanted[r] = row[target];
        for (int64_t m = 0; m < most; ++m) {
          const int64_t at = words_of[(first + r) * most + m] - word;
          if (at >= 0 && at < here) known[r] += parts_of[(first + r) * most + m] * (row[at] * cool);
        }
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      // Logarithms of the sums: of e^logit in `total`, of e^(logit / temperature) in `flat`.
      flat[r] = highest[r] * cool + static_cast<float>(std::log(static_cast<double>(flat[r])));
      total[r] = highest[r] + static_cast<float>(std::log(static_cast<double>(total[r])));
      loss[first + r] = shares[first + r] * (total[r] - wanted[r]) + (mass[r] * flat[r] - known[r]);
    }
    clear(y + first * depth, count * depth);
    for (int64_t word = 0; word < vocabulary; word += kWords) {
      const int64_t here = smaller(kWords, vocabulary - word);
      head.compute(x + first * depth, count, word, here);
      for (int64_t r = 0; r < count; ++r) {
        float* row = logits + r * kWords;
        const auto slope = [&](float logit) { return scale * (cap > 0 ? 1.0f - logit / cap * (logit / cap) : 1.0f); };
        const f32x16 level = splat(total[r]), by = splat(shares[first + r] * scale);
        const f32x16 even = splat(flat[r]), over = splat(mass[r] * cool * scale);
        const int64_t target = targets[first + r] - word;
        const bool mine = target >= 0 && target < here;
        const float off = mine ? shares[first + r] * slope(row[target]) : 0.0f;
        // What is taken off at the teacher's words needs their logits, which the gradient takes the place of.
        float* taken = known;  // no longer used: room for kWords
        bool any = false;
        for (int64_t m = 0; m < most; ++m) {
          const int64_t at = words_of[(first + r) * most + m] - word;
          if (at < 0 || at >= here) continue;
          if (!any) clear(taken, kWords);
          any = true;
          taken[at] += parts_of[(first + r) * most + m] * cool * slope(row[at]);
        }
        fill(row, here, [&](auto at) {
          const f32x16 logit = at(row), part = logit / head.cap;
          const f32x16 chance = exp(logit - level) * by + exp(logit * cooled - even) * over;
          return head.capped ? chance * (splat(1.0f) - part * part) : chance;
        });
        if (mine) row[target] -= off;
        for (int64_t w = 0; any && w < here; ++w) row[w] -= taken[w];
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
