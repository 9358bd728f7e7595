// matmul_epilogue: what all products share: cutting outputs into tasks, and bias and activation after the sums.
#pragma once
#include "core/words.h"
#include "simd/simd.h"

namespace weft::ISA {

WEFT_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
WEFT_INLINE int64_t larger(int64_t a, int64_t b) { return a < b ? b : a; }
WEFT_INLINE int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// Outputs [rows, 16 * panels] cut into tasks of row_step x panel_step, panel steps of one row step after another.
struct Tasks {
  int64_t rows, panels, row_step, panel_step;

  // At most max_rows x max_panels a task. With too few tasks for the team, panels are halved down to min_panels, then
  // rows down to one tile of `tile` rows. The cut never changes a result.
  WEFT_INLINE Tasks(int64_t rows, int64_t panels, int64_t tile, int64_t max_rows, int64_t max_panels,
                    int64_t min_panels, int workers)
      : rows(rows), panels(panels), row_step(max_rows), panel_step(max_panels) {
    if (rows == 0) return;
    const auto whole_tiles = [&](int64_t step) { return smaller(max_rows, parts(step, tile) * tile); };
    row_step = whole_tiles(parts(rows, parts(rows, max_rows)));
    while (panel_step > min_panels && count() < 4 * workers) panel_step /= 2;
    while (row_step > tile && count() < 2 * workers) row_step = whole_tiles(parts(row_step, 2));
  }
  WEFT_INLINE int64_t panel_tasks() const { return parts(panels, panel_step); }
  WEFT_INLINE int64_t count() const { return parts(rows, row_step) * panel_tasks(); }
  WEFT_INLINE int64_t row(int64_t task) const { return task / panel_tasks() * row_step; }
  WEFT_INLINE int64_t row_end(int64_t task) const { return smaller(rows, row(task) + row_step); }
  WEFT_INLINE int64_t panel(int64_t task) const { return task % panel_tasks() * panel_step; }
  WEFT_INLINE int64_t panel_end(int64_t task) const { return smaller(panels, panel(task) + panel_step); }
};

// Panels cut for a team that reads W from memory: each cut takes an equal share of the rest, so that there are few
// starts, and the last cuts are so small that a slow worker delays nothing.
struct Shares {
  int64_t panels, least, parts;

  struct Cut {
    int64_t begin, end;  // begin == panels: there is no such task
  };
  WEFT_INLINE Cut cut(int64_t task) const {
    Cut now{0, 0};
    for (int64_t i = 0; i <= task; ++i) {
      now.begin = now.end;
      if (now.begin == panels) break;
      now.end = smaller(panels, now.end + larger(least, (panels - now.end) / parts));
    }
    return now;
  }
};

struct Epilogue {
  const float* bias;  // null: none
  Activation activation;

  WEFT_INLINE explicit Epilogue(const Call& call, int bias_operand = 2)
      : bias(call.n_in > bias_operand ? call.in[bias_operand].as<float>() : nullptr),
        activation(static_cast<Activation>(call.integer("activation"))) {}
};

// `count` sums of the outputs from `column` on: + bias, then the activation.
WEFT_INLINE f32x16 finished(const Epilogue& epilogue, f32x16 sums, int64_t column, int64_t count) {
  if (epilogue.bias) sums = sums + load_n(epilogue.bias + column, count);
  return epilogue.activation == Activation::none ? sums : activate(epilogue.activation, sums);
}

// The same where the result is rounded to bfloat16 before it is used.
[[maybe_unused]] WEFT_INLINE f32x16 finished_coarse(const Epilogue& epilogue, f32x16 sums, int64_t column, int64_t count) {
  if (epilogue.bias) sums = sums + load_n(epilogue.bias + column, count);
  with_activation(epilogue.activation, [&](auto kind) { sums = activate_coarse<kind()>(sums); });
  return sums;
}

// Rows [row, row_end), columns [begin, end) of y [rows, stride].
[[maybe_unused]] static void finish(const Epilogue& epilogue, float* y, int64_t stride, int64_t row, int64_t row_end,
                                    int64_t begin, int64_t end) {
  if (!epilogue.bias && epilogue.activation == Activation::none) return;
  for (; row < row_end; ++row)
    for (int64_t i = begin; i < end; i += 16) {
      const int64_t count = smaller(16, end - i);
      store_n(y + row * stride + i, finished(epilogue, load_n(y + row * stride + i, count), i, count), count);
    }
}

}  // namespace weft::ISA
