// matmul_epilogue: what all products share: cutting outputs into tasks, and bias and activation after the sums.
#pragma once
#include "core/weight.h"
#include "core/words.h"
#include "kernels/rows.h"

namespace weft::ISA {

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
    if (workers > 4 && rows >= 4 * tile) {
      fit(tile, max_rows, max_panels, min_panels, workers);
      return;
    }
    const auto whole_tiles = [&](int64_t step) { return smaller(max_rows, parts(step, tile) * tile); };
    row_step = whole_tiles(parts(rows, parts(rows, max_rows)));
    while (panel_step > min_panels && count() < 4 * workers) panel_step /= 2;
    while (row_step > tile && count() < 2 * workers) row_step = whole_tiles(parts(row_step, 2));
  }
  // The cut that a large team finishes soonest. A row is laid out anew for every task (about the work of one panel), a panel
  // unpacked for every task (about that of eight rows).
  WEFT_INLINE void fit(int64_t tile, int64_t max_rows, int64_t max_panels, int64_t min_panels, int workers) {
    constexpr int64_t kPieces[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    const int64_t least_rows = parts(rows, smaller(rows, max_rows)), least_panels = parts(panels, max_panels);
    int64_t best = INT64_MAX, best_rows = max_rows, best_panels = max_panels;
    for (int64_t i : kPieces) {
      row_step = smaller(max_rows, parts(parts(rows, least_rows * i), tile) * tile);
      for (int64_t j : kPieces) {
        panel_step = parts(panels, least_panels * j);
        if (j > 1 && panel_step < min_panels) break;
        const int64_t rounds = parts(count(), workers), each = row_step * panel_step + row_step + 8 * panel_step;
        if (rounds * each < best) best = rounds * each, best_rows = row_step, best_panels = panel_step;
      }
      if (row_step == tile) break;
    }
    row_step = best_rows, panel_step = best_panels;
  }
  WEFT_INLINE int64_t panel_tasks() const { return parts(panels, panel_step); }
  WEFT_INLINE int64_t count() const { return parts(rows, row_step) * panel_tasks(); }
  WEFT_INLINE int64_t row(int64_t task) const { return task / panel_tasks() * row_step; }
  WEFT_INLINE int64_t row_end(int64_t task) const { return smaller(rows, row(task) + row_step); }
  WEFT_INLINE int64_t panel(int64_t task) const { return task % panel_tasks() * panel_step; }
  WEFT_INLINE int64_t panel_end(int64_t task) const { return smaller(panels, panel(task) + panel_step); }
};

// What a task computes: rows [row, row_end) times panels [panel, panel_end) of one matrix.
struct Piece {
  int64_t matrix, row, row_end, panel, panel_end;
};

// Where the rows of each matrix of a stack begin; null: one matrix.
WEFT_INLINE const int32_t* starts_of(const Call& call, int operand) {
  return call.n_in > operand && call.in[operand].data ? call.in[operand].as<int32_t>() : nullptr;
}

// The tasks of a product, which has one matrix for all rows, or a stack of matrices and for each the rows from `starts` on.
// A worker knows only the sizes before its first task, so a stack has as many tasks as any starts could need; some of them
// then have no rows.
struct Pieces {
  static constexpr int kStarts = 3;  // the operand
  Tasks tasks;
  const int32_t* starts = nullptr;  // null: one matrix
  int64_t matrices = 1, most = 0;   // most: pieces of rows

  WEFT_INLINE Pieces(int64_t rows, int64_t outputs, const int32_t* of_matrices, int64_t stacked, int64_t tile, int64_t max_rows,
                     int64_t max_panels, int64_t min_panels, int workers)
      : tasks(rows, parts(outputs, 16), tile, max_rows, max_panels, min_panels, workers), starts(of_matrices) {
    if (!starts) return;
    matrices = stacked;
    const int64_t used = smaller(matrices, tasks.rows);
    tasks.row_step = max_rows, tasks.panel_step = smaller(max_panels, tasks.panels);
    while (tasks.panel_step > min_panels && used * tasks.panel_tasks() < 4 * workers) tasks.panel_step = parts(tasks.panel_step, 2);
    most = used + tasks.rows / max_rows;
  }
  WEFT_INLINE Pieces(const Call& call, const Weight& weight, int64_t tile, int64_t max_rows, int64_t max_panels,
                     int64_t min_panels, int workers)
      : Pieces(call.in[0].rows(), weight.rows, starts_of(call, kStarts), weight.matrices, tile, max_rows, max_panels, min_panels,
               workers) {}
  WEFT_INLINE int64_t count() const { return starts ? most * tasks.panel_tasks() : tasks.count(); }
  WEFT_INLINE Piece at(int64_t task) const {
    const int64_t panel = tasks.panel(task), panel_end = tasks.panel_end(task);
    if (!starts) return {0, tasks.row(task), tasks.row_end(task), panel, panel_end};
    int64_t index = task / tasks.panel_tasks(), end = 0;
    for (int64_t matrix = 0; matrix < matrices; ++matrix) {
      const int64_t row = end;
      end = larger(row, smaller(tasks.rows, starts[matrix + 1]));  // whatever starts say, rows exist and are in order
      const int64_t pieces = parts(end - row, tasks.row_step);
      if (index < pieces) {
        const int64_t first = row + index * tasks.row_step;
        return {matrix, first, smaller(end, first + tasks.row_step), panel, panel_end};
      }
      index -= pieces;
    }
    return {0, 0, 0, panel, panel_end};
  }
};

// The matrix of a piece.
WEFT_INLINE const std::byte* matrix_of(const Weight& weight, const Piece& piece) {
  return weight.stack ? weight.stack[piece.matrix] : weight.data;
}

// Panels cut for a team that reads W from memory. A large part of W is cut into one piece for each worker, so that there
// are few starts, and the rest into pieces so small that a slow worker delays nothing. Where the pieces would be of a few
// panels, all of W is cut evenly: drawing them would take as long as multiplying them.
struct Shares {
  struct Cut {
    int64_t begin, end;  // begin == panels: there is no such task
  };
  static constexpr int64_t kFew = 6, kSmaller = 8;

  int64_t panels;
  int64_t even;  // pieces that are the first of their workers
  int64_t count = even;  // of all pieces
  int64_t piece = 0, small = 0;  // panels of a first piece and of a later one; 0: W is cut evenly

  WEFT_INLINE Shares(int64_t panels, int64_t workers) : panels(panels), even(smaller(panels, workers)) {
    if (workers == 1 || panels <= kFew * workers) return;
    piece = panels * 3 / 4 / workers;
    small = larger(1, piece / kSmaller);
    count = even + parts(panels - even * piece, small);
  }
  WEFT_INLINE Cut cut(int64_t task) const {
    if (task >= count) return {panels, panels};
    if (!piece) return {task * panels / even, (task + 1) * panels / even};
    if (task < even) return {task * piece, (task + 1) * piece};
    const int64_t begin = even * piece + (task - even) * small;
    return {begin, smaller(panels, begin + small)};
  }
};

struct Epilogue {
  const float* bias = nullptr;  // null: none
  Activation activation = Activation::none;

  Epilogue() = default;
  WEFT_INLINE explicit Epilogue(const Call& call, int bias_operand = 2)
      : bias(call.n_in > bias_operand ? call.in[bias_operand].as<float>() : nullptr),
        activation(static_cast<Activation>(call.integer("activation"))) {}

  // Of a matrix of a stack, whose biases lie one after another.
  WEFT_INLINE Epilogue of(int64_t matrix, int64_t columns) const {
    Epilogue one = *this;
    if (bias) one.bias += matrix * columns;
    return one;
  }
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
