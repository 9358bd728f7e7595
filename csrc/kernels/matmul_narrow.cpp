// matmul_narrow: y = act(x Wᵀ + b) with a frozen weight of any type, in half precision or bfloat16, for training.
//
// Meaning  weft/ops/narrow.py
// Layout   x [M, K], y [M, N] contiguous; W in panels of any packed type (pack/panels.h), or rows of any type; or a stack
// Method   a task is up to 256 rows and 256 columns of y; blocks of W of 256 x 256 are widened and rounded in scratch, rows of x
//          beside them (kernels/narrow.h). f16 at levels without its arithmetic rounds nothing
// Bound    arithmetic; widening and rounding W is about a tenth of it for 256 rows
#include "kernels/narrow.h"

namespace weft::ISA {

KERNEL(matmul_narrow) {
  with_form(static_cast<Narrow>(call.integer("to")), [&](auto* form) {
    using Form = std::remove_pointer_t<decltype(form)>;
    static_assert(kSourceBytes + Form::kBytes <= int64_t{kScratchBytes});
    const Weight& weight = *call.in[1].weight;
    const int64_t depth = weight.cols, columns = weight.rows;
    const float* x = call.in[0].as<float>();
    float* y = call.out[0].as<float>();
    const Epilogue epilogue(call);
    const int32_t* starts = call.n_in > 3 && call.in[3].data ? call.in[3].as<int32_t>() : nullptr;
    const NarrowTasks tasks(call.in[0].rows(), columns, weight, starts, worker.count);
    for (int64_t task; (task = worker.next(tasks.count())) < tasks.count();) {
      const auto [matrix, first, end] = tasks.at(task);
      const int64_t column = tasks.column(task), wide = smaller(kNarrowColumns, columns - column);
      if (first == end) continue;
      multiply_narrow<Form>(Turned{weight, matrix, worker.scratch}, 0, column, x + first * depth, depth, end - first, depth,
                            y + first * columns + column, columns, wide, false, worker.scratch + kSourceBytes);
      finish(epilogue.of(matrix, columns), y, columns, first, end, column, column + wide);
    }
  });
}

}  // namespace weft::ISA
