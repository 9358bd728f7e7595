// What losses over a vocabulary share whose products are in half precision or bfloat16: head_loss_narrow, head_distill_narrow.
//
// A task takes up to 256 rows and goes through W twice, 256 words at a time: for the sums of e^logit, then for the gradient.
// Products are as in matmul_narrow and matmul_back_narrow.
#pragma once
#include <cmath>

#include "kernels/narrow.h"
#include "kernels/strips.h"

namespace weft::ISA {

constexpr int64_t kWords = kNarrowColumns;

struct HeadCall {
  const Weight& weight;
  const float* x;
  float* y;
  int64_t rows;
  float scale, cap;

  explicit HeadCall(const Call& call)
      : weight(*call.in[1].weight), x(call.in[0].as<float>()), y(call.out[1].as<float>()), rows(call.in[0].rows()),
        scale(static_cast<float>(call.number("scale"))), cap(static_cast<float>(call.number("softcap"))) {}

  // What logits are, from the products.
  WEFT_INLINE void finish(float* logits, int64_t count, int64_t words) const {
    const f32x16 by = splat(scale), most = splat(cap);
    if (scale == 1 && cap == 0) return;
    for (int64_t r = 0; r < count; ++r) {
      float* row = logits + r * kWords;
      fill(row, words, [&](auto at) {
        const f32x16 raw = at(row) * by;
        return cap > 0 ? most * tanh(raw / most) : raw;
      });
    }
  }

  // The derivative of a logit at its product times the scale.
  WEFT_INLINE float slope(float logit) const { return cap > 0 ? 1.0f - logit / cap * (logit / cap) : 1.0f; }
};

// The sum of e^((logit - level) * by) over the words of a row.
WEFT_INLINE float powers(const float* row, int64_t words, float level, float by) {
  const f32x16 under = splat(level), cool = splat(by);
  return sum(fold(words, zero(), [&](auto at, f32x16 acc) { return acc + at.or_else(exp((at(row) - under) * cool), zero()); }));
}

WEFT_INLINE float largest(const float* row, int64_t words, float before) {
  return max_lane(fold(words, splat(before), [&](auto at, f32x16 acc) { return max(acc, at.or_else(at(row), acc)); }));
}

// Loss has Rows, what a task knows of its rows; begin, add (the logits of some words), end (the loss is known) and turn (the
// gradient at logits, in their place).
template <class Form, class Loss>
void learn(const Loss& loss, const HeadCall& head, int64_t first, int64_t count, std::byte* scratch) {
  std::byte* forms = scratch + kSourceBytes;
  auto* logits = reinterpret_cast<float*>(forms + Form::kBytes);
  auto& rows = *reinterpret_cast<typename Loss::Rows*>(logits + kNarrowRows * kWords);
  static_assert(kSourceBytes + Form::kBytes + kNarrowRows * kWords * 4 + int64_t{sizeof(rows)} <= int64_t{kScratchBytes});
  const Turned turned{head.weight, 0, scratch};
  const Straight straight{head.weight, 0, scratch};
  const int64_t vocabulary = head.weight.rows, depth = head.weight.cols;
  const auto compute = [&](int64_t word, int64_t words) {
    multiply_narrow<Form>(turned, 0, word, head.x + first * depth, depth, count, depth, logits, kWords, words, false, forms);
    head.finish(logits, count, words);
  };
  for (int64_t r = 0; r < count; ++r) loss.begin(rows, r, first + r);
  for (int64_t word = 0; word < vocabulary; word += kWords) {
    const int64_t words = smaller(kWords, vocabulary - word);
    compute(word, words);
    for (int64_t r = 0; r < count; ++r) loss.add(rows, r, logits + r * kWords, first + r, words, word);
  }
  for (int64_t r = 0; r < count; ++r) loss.end(rows, r, first + r);
  for (int64_t word = 0; word < vocabulary; word += kWords) {
    const int64_t words = smaller(kWords, vocabulary - word);
    compute(word, words);
    for (int64_t r = 0; r < count; ++r) loss.turn(rows, r, logits + r * kWords, first + r, words, word);
    for (int64_t k = 0; k < depth; k += kNarrowColumns)
      multiply_narrow<Form>(straight, word, k, logits, kWords, count, words, head.y + first * depth + k, depth,
                            smaller(kNarrowColumns, depth - k), word > 0, forms);
  }
}

template <class Loss>
void learn(const Loss& loss, const HeadCall& head, const Call& call, const Worker& worker) {
  const int64_t share = rows_per_task(head.rows, worker.count, 16, kNarrowRows), tasks = parts(head.rows, share);
  for (int64_t task; (task = worker.next(tasks)) < tasks;)
    with_form(static_cast<Narrow>(call.integer("to")), [&](auto* form) {
      learn<std::remove_pointer_t<decltype(form)>>(loss, head, task * share, smaller(share, head.rows - task * share),
                                                   worker.scratch);
    });
}

}  // namespace weft::ISA
