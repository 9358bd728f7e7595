// head_loss: the loss of each row over the vocabulary, and its gradient at the row, without storing logits.
//
// Meaning  weft/ops/training.py
// Layout   x, y [L, K], targets i32 [L], shares, loss [L] contiguous; W [V, K] of any type, as the file has it or in panels
// Method   a task takes up to 64 rows and goes through W twice, some words at a time: for the sum of e^logit, then for the
//          gradient. A logit is 16 lane sums over K and the fixed tree; a gradient one chain over V
// Bound    arithmetic: three products with W
#include <cmath>

#include "core/weight.h"
#include "kernels/strips.h"
#include "pack/panels.h"

namespace weft::ISA {

constexpr int64_t kRows = 64, kWords = 64;

// out[r][w] = x row r · word w
template <int R>
WEFT_INLINE void dots(float* out, const float* x, const float* words, int64_t count, int64_t depth) {
  for (int64_t w = 0; w < count; ++w) {
    f32x16 acc[R];
    for (int r = 0; r < R; ++r) acc[r] = zero();
    int64_t k = 0;
    for (; k + 16 <= depth; k += 16) {
      const f32x16 word = load(words + w * depth + k);
      for (int r = 0; r < R; ++r) acc[r] = fma(load(x + r * depth + k), word, acc[r]);
    }
    if (k < depth) {
      const f32x16 word = load_n(words + w * depth + k, depth - k);
      for (int r = 0; r < R; ++r) acc[r] = fma(load_n(x + r * depth + k, depth - k), word, acc[r]);
    }
    for (int r = 0; r < R; ++r) out[r * kWords + w] = sum(acc[r]);
  }
}

struct Head {
  const Weight& weight;
  int64_t depth, words;  // words at a time
  f32x16 scale, cap;
  bool capped;
  float *tile, *logits;  // [words, depth], [kRows, kWords]

  // Logits of the words from `first` on, for `rows` rows of x.
  WEFT_INLINE void compute(const float* x, int64_t rows, int64_t first, int64_t count) const {
    for (int64_t w = 0; w < count; ++w) read_row(weight, first + w, tile + w * depth);
    int64_t r = 0;
    for (; r + 4 <= rows; r += 4) dots<4>(logits + r * kWords, x + r * depth, tile, count, depth);
    for (; r < rows; ++r) dots<1>(logits + r * kWords, x + r * depth, tile, count, depth);
    for (r = 0; r < rows; ++r) {
      float* row = logits + r * kWords;
      fill(row, count, [&](auto at) {
        const f32x16 raw = at(row) * scale;
        return capped ? cap * tanh(raw / cap) : raw;
      });
    }
  }
};

KERNEL(head_loss) {
  const Weight& weight = *call.in[1].weight;
  const int64_t rows = call.in[0].rows(), depth = call.in[0].cols(), vocabulary = weight.rows;
  const float *x = call.in[0].as<float>(), *shares = call.in[3].as<float>();
  const int32_t* targets = call.in[2].as<int32_t>();
  float *loss = call.out[0].as<float>(), *y = call.out[1].as<float>();
  const float scale = static_cast<float>(call.number("scale")), cap = static_cast<float>(call.number("softcap"));
  float* scratch = reinterpret_cast<float*>(worker.scratch);
  float *highest = scratch, *total = highest + kRows, *wanted = total + kRows, *logits = wanted + kRows;
  float* tile = logits + kRows * kWords;
  const int64_t room = static_cast<int64_t>(kScratchBytes / sizeof(float)) - (tile - scratch);
  const int64_t words = larger(1, smaller(kWords, room / depth));
  const Head head{weight, depth, words, splat(scale), splat(cap), cap > 0, tile, logits};
  const int64_t share = rows_per_task(rows, worker.count, 8, kRows), tasks = (rows + share - 1) / share;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t first = task * share, count = smaller(share, rows - first);
    for (int64_t r = 0; r < count; ++r) highest[r] = -INFINITY, total[r] = 0, wanted[r] = 0;
    for (int64_t word = 0; word < vocabulary; word += words) {
      const int64_t here = smaller(words, vocabulary - word);
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
    for (int64_t word = 0; word < vocabulary; word += words) {
      const int64_t here = smaller(words, vocabulary - word);
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
      add_product(y + first * depth, depth, count, depth, {logits, kWords, 1}, tile, depth, here);
    }
  }
}

}  // namespace weft::ISA
