// head_loss_narrow: head_loss with its three products in half precision or bfloat16; softmax and loss are float32.
//
// Meaning  weft/ops/narrow.py
// Layout   x, y [L, K], targets i32 [L], shares, loss [L] contiguous; W [V, K] of any type, as the file has it or in panels
// Method   a task takes up to 256 rows and goes through W twice, 256 words at a time: for the sum of e^logit, then for the
//          gradient. Products as in matmul_narrow and matmul_back_narrow
// Bound    arithmetic: three products with W
#include <cmath>

#include "kernels/narrow.h"
#include "kernels/strips.h"

namespace weft::ISA {

constexpr int64_t kWords = kNarrowColumns;

// What a task knows of its rows: of each the largest logit, the sum of e^(logit - largest), the target's logit.
struct Rows {
  float highest[kNarrowRows], total[kNarrowRows], wanted[kNarrowRows];
};

struct NarrowHead {
  const float *x, *shares;
  const int32_t* targets;
  float *loss, *y;
  int64_t depth;
  float scale, cap;

  // What logits are, from the products.
  WEFT_INLINE void finish(float* logits, int64_t rows, int64_t words) const {
    const f32x16 by = splat(scale), most = splat(cap);
    if (scale == 1 && cap == 0) return;
    for (int64_t r = 0; r < rows; ++r) {
      float* row = logits + r * kWords;
      fill(row, words, [&](auto at) {
        const f32x16 raw = at(row) * by;
        return cap > 0 ? most * tanh(raw / most) : raw;
      });
    }
  }

  WEFT_INLINE void add_words(Rows& rows, int64_t r, const float* row, int64_t first, int64_t words, int64_t word) const {
    const float top = max_lane(fold(words, splat(rows.highest[r]), [&](auto at, f32x16 acc) {
      return max(acc, at.or_else(at(row), acc));
    }));
    const f32x16 level = splat(top);
    const float added = sum(fold(words, zero(), [&](auto at, f32x16 acc) {
      return acc + at.or_else(exp(at(row) - level), zero());
    }));
    rows.total[r] = rows.total[r] * (rows.highest[r] == top ? 1.0f : std::exp(rows.highest[r] - top)) + added;
    rows.highest[r] = top;
    const int64_t target = targets[first + r] - word;
    if (target >= 0 && target < words) rows.wanted[r] = row[target];
  }

  // The loss's gradient at the logits, in their place; `level` is the logarithm of the sum of e^logit.
  WEFT_INLINE void turn_words(float* row, float level, int64_t index, int64_t words, int64_t word) const {
    const f32x16 under = splat(level), by = splat(shares[index] * scale), most = splat(cap);
    const int64_t target = targets[index] - word;
    const bool mine = target >= 0 && target < words;
    const float raw = mine ? row[target] : 0.0f;
    fill(row, words, [&](auto at) {
      const f32x16 logit = at(row), chance = exp(logit - under) * by, part = logit / most;
      return cap > 0 ? chance * (splat(1.0f) - part * part) : chance;
    });
    if (mine) row[target] -= shares[index] * scale * (cap > 0 ? 1.0f - raw / cap * (raw / cap) : 1.0f);
  }

  template <class Form>
  void learn(const Weight& weight, int64_t first, int64_t count, std::byte* scratch) const {
    std::byte* forms = scratch + kSourceBytes;
    auto* logits = reinterpret_cast<float*>(forms + Form::kBytes);
    auto& rows = *reinterpret_cast<Rows*>(logits + kNarrowRows * kWords);
    static_assert(kSourceBytes + Form::kBytes + kNarrowRows * kWords * 4 + int64_t{sizeof(Rows)} <= int64_t{kScratchBytes});
    const Turned turned{weight, 0, scratch};
    const Straight straight{weight, 0, scratch};
    const int64_t vocabulary = weight.rows;
    const auto compute = [&](int64_t word, int64_t words) {
      multiply_narrow<Form>(turned, 0, word, x + first * depth, depth, count, depth, logits, kWords, words, false, forms);
      finish(logits, count, words);
    };
    for (int64_t r = 0; r < count; ++r) rows.highest[r] = -INFINITY, rows.total[r] = 0, rows.wanted[r] = 0;
    for (int64_t word = 0; word < vocabulary; word += kWords) {
      const int64_t words = smaller(kWords, vocabulary - word);
      compute(word, words);
      for (int64_t r = 0; r < count; ++r) add_words(rows, r, logits + r * kWords, first, words, word);
    }
    for (int64_t r = 0; r < count; ++r) {
      rows.highest[r] += static_cast<float>(std::log(static_cast<double>(rows.total[r])));
      loss[first + r] = shares[first + r] * (rows.highest[r] - rows.wanted[r]);
    }
    for (int64_t word = 0; word < vocabulary; word += kWords) {
      const int64_t words = smaller(kWords, vocabulary - word);
      compute(word, words);
      for (int64_t r = 0; r < count; ++r) turn_words(logits + r * kWords, rows.highest[r], first + r, words, word);
      for (int64_t k = 0; k < depth; k += kNarrowColumns)
        multiply_narrow<Form>(straight, word, k, logits, kWords, count, words, y + first * depth + k, depth,
                              smaller(kNarrowColumns, depth - k), word > 0, forms);
    }
  }
};

KERNEL(head_loss_narrow) {
  const Weight& weight = *call.in[1].weight;
  const NarrowHead head{call.in[0].as<float>(), call.in[3].as<float>(), call.in[2].as<int32_t>(), call.out[0].as<float>(),
                        call.out[1].as<float>(), weight.cols, static_cast<float>(call.number("scale")),
                        static_cast<float>(call.number("softcap"))};
  const int64_t rows = call.in[0].rows(), share = rows_per_task(rows, worker.count, 16, kNarrowRows);
  const int64_t tasks = parts(rows, share);
  for (int64_t task; (task = worker.next(tasks)) < tasks;)
    with_form(static_cast<Narrow>(call.integer("to")), [&](auto* form) {
      head.learn<std::remove_pointer_t<decltype(form)>>(weight, task * share, smaller(share, rows - task * share), worker.scratch);
    });
}

}  // namespace weft::ISA
