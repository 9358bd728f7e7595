// head_loss_narrow: head_loss with its three products in half precision or bfloat16; softmax and loss are float32.
//
// Meaning  weft/ops/narrow.py
// Layout   x, y [L, K], targets i32 [L], shares, loss [L] contiguous; W [V, K] of any type, as the file has it or in panels
// Method   head_narrow.h
// Bound    arithmetic: three products with W
#include "kernels/head_narrow.h"

namespace weft::ISA {

struct Loss {
  const HeadCall& head;
  const int32_t* targets;
  const float* shares;
  float* loss;

  // Of each row the largest logit, the sum of e^(logit - largest), the target's logit.
  struct Rows {
    float highest[kNarrowRows], total[kNarrowRows], wanted[kNarrowRows];
  };

  WEFT_INLINE void begin(Rows& rows, int64_t r, int64_t) const {
    rows.highest[r] = -INFINITY, rows.total[r] = 0, rows.wanted[r] = 0;
  }

  WEFT_INLINE void add(Rows& rows, int64_t r, const float* row, int64_t index, int64_t words, int64_t word) const {
    const float top = largest(row, words, rows.highest[r]), added = powers(row, words, top, 1.0f);
    rows.total[r] = rows.total[r] * (rows.highest[r] == top ? 1.0f : std::exp(rows.highest[r] - top)) + added;
    rows.highest[r] = top;
    const int64_t target = targets[index] - word;
    if (target >= 0 && target < words) rows.wanted[r] = row[target];
  }

  // `highest` becomes the logarithm of the sum of e^logit.
  WEFT_INLINE void end(Rows& rows, int64_t r, int64_t index) const {
    rows.highest[r] += static_cast<float>(std::log(static_cast<double>(rows.total[r])));
    loss[index] = shares[index] * (rows.highest[r] - rows.wanted[r]);
  }

  WEFT_INLINE void turn(Rows& rows, int64_t r, float* row, int64_t index, int64_t words, int64_t word) const {
    const f32x16 under = splat(rows.highest[r]), by = splat(shares[index] * head.scale), most = splat(head.cap);
    const int64_t target = targets[index] - word;
    const bool mine = target >= 0 && target < words;
    const float off = mine ? shares[index] * head.scale * head.slope(row[target]) : 0.0f;
    fill(row, words, [&](auto at) {
      const f32x16 logit = at(row), chance = exp(logit - under) * by, part = logit / most;
      return head.cap > 0 ? chance * (splat(1.0f) - part * part) : chance;
    });
    if (mine) row[target] -= off;
  }
};

KERNEL(head_loss_narrow) {
  const HeadCall head{call};
  learn(Loss{head, call.in[2].as<int32_t>(), call.in[3].as<float>(), call.out[0].as<float>()}, head, call, worker);
}

}  // namespace weft::ISA
