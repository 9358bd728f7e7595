// head_distill_narrow: head_distill with its three products in half precision or bfloat16; softmax and losses are float32.
//
// Meaning  weft/ops/narrow.py
// Layout   x, y [L, K], targets i32 [L], shares, loss [L], words i32 and parts [L, M] contiguous; W [V, K] of any type
// Method   head_narrow.h, with two sums in the first pass, of e^logit and of e^(logit / temperature), and both gradients in
//          the second. Words outside the block at hand are passed by, so M is meant to be small beside V
// Bound    arithmetic: three products with W
#include "kernels/head_narrow.h"

namespace weft::ISA {

struct Distillation {
  const HeadCall& head;
  const int32_t* targets;
  const float* shares;
  const int32_t* words_of;
  const float* parts_of;
  int64_t most;
  float cool;
  float* loss;

  // Of each row the largest logit and both sums below it; the target's logit, the teacher's logits and the sum of its parts.
  struct Rows {
    float highest[kNarrowRows], total[kNarrowRows], flat[kNarrowRows], wanted[kNarrowRows], known[kNarrowRows], mass[kNarrowRows];
    float taken[kWords];
  };

  // Calls f with the place among `words` from `word` on, and the part, of each of the teacher's words there.
  template <class F>
  WEFT_INLINE void each_word(int64_t index, int64_t words, int64_t word, F f) const {
    for (int64_t m = 0; m < most; ++m) {
      const int64_t at = words_of[index * most + m] - word;
      if (at >= 0 && at < words) f(at, parts_of[index * most + m]);
    }
  }

  WEFT_INLINE void begin(Rows& rows, int64_t r, int64_t index) const {
    rows.highest[r] = -INFINITY, rows.total[r] = 0, rows.flat[r] = 0, rows.wanted[r] = 0, rows.known[r] = 0, rows.mass[r] = 0;
    for (int64_t m = 0; m < most; ++m) rows.mass[r] += parts_of[index * most + m];
  }

  WEFT_INLINE void add(Rows& rows, int64_t r, const float* row, int64_t index, int64_t words, int64_t word) const {
    const float top = largest(row, words, rows.highest[r]);
    const float lower = rows.highest[r] - top;  // minus infinity before the first block, where both sums are zero
    rows.total[r] = rows.total[r] * (lower == 0 ? 1.0f : std::exp(lower)) + powers(row, words, top, 1.0f);
    rows.flat[r] = rows.flat[r] * (lower == 0 ? 1.0f : std::exp(lower * cool)) + powers(row, words, top, cool);
    rows.highest[r] = top;
    const int64_t target = targets[index] - word;
    if (target >= 0 && target < words) rows.wanted[r] = row[target];
    each_word(index, words, word, [&](int64_t at, float part) { rows.known[r] += part * (row[at] * cool); });
  }

  // `total` and `flat` become the logarithms of the sums of e^logit and of e^(logit / temperature).
  WEFT_INLINE void end(Rows& rows, int64_t r, int64_t index) const {
    rows.flat[r] = rows.highest[r] * cool + static_cast<float>(std::log(static_cast<double>(rows.flat[r])));
    rows.total[r] = rows.highest[r] + static_cast<float>(std::log(static_cast<double>(rows.total[r])));
    loss[index] = shares[index] * (rows.total[r] - rows.wanted[r]) + (rows.mass[r] * rows.flat[r] - rows.known[r]);
  }

  WEFT_INLINE void turn(Rows& rows, int64_t r, float* row, int64_t index, int64_t words, int64_t word) const {
    const f32x16 level = splat(rows.total[r]), by = splat(shares[index] * head.scale), most_logit = splat(head.cap);
    const f32x16 even = splat(rows.flat[r]), over = splat(rows.mass[r] * cool * head.scale), cooled = splat(cool);
    const int64_t target = targets[index] - word;
    const bool mine = target >= 0 && target < words;
    const float off = mine ? shares[index] * head.scale * head.slope(row[target]) : 0.0f;
    // What is taken off at the teacher's words needs their logits, which the gradient takes the place of.
    bool any = false;
    each_word(index, words, word, [&](int64_t at, float part) {
      if (!any) clear(rows.taken, kWords);
      any = true;
      rows.taken[at] += part * cool * head.scale * head.slope(row[at]);
    });
    fill(row, words, [&](auto at) {
      const f32x16 logit = at(row), part = logit / most_logit;
      const f32x16 chance = exp(logit - level) * by + exp(logit * cooled - even) * over;
      return head.cap > 0 ? chance * (splat(1.0f) - part * part) : chance;
    });
    if (mine) row[target] -= off;
    for (int64_t w = 0; any && w < words; ++w) row[w] -= rows.taken[w];
  }
};

KERNEL(head_distill_narrow) {
  const HeadCall head{call};
  const Distillation loss{head, call.in[2].as<int32_t>(), call.in[3].as<float>(), call.in[4].as<int32_t>(),
                          call.in[5].as<float>(), call.in[4].cols(), static_cast<float>(1.0 / call.number("temperature")),
                          call.out[0].as<float>()};
  learn(loss, head, call, worker);
}

}  // namespace weft::ISA
