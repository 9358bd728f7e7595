// matmul_back_narrow: y = grad W with a frozen weight of any type, in half precision or bfloat16.
//
// Meaning  weft/ops/narrow.py
// Layout   grad [M, N], W [N, K] or a stack of them, y [M, K]; grad and y contiguous; starts i32 [E+1] or absent
// Method   as matmul_narrow, with blocks of W as the file has its rows.
// Bound    arithmetic; widening and rounding W is about a tenth of it for 256 rows
#include "kernels/narrow.h"

namespace weft::ISA {

KERNEL(matmul_back_narrow) {
  with_form(static_cast<Narrow>(call.integer("to")), [&](auto* form) {
    using Form = std::remove_pointer_t<decltype(form)>;
    const Weight& weight = *call.in[1].weight;
    const int64_t depth = weight.rows, columns = weight.cols;
    const float* grad = call.in[0].as<float>();
    float* y = call.out[0].as<float>();
    const int32_t* starts = call.n_in > 2 && call.in[2].data ? call.in[2].as<int32_t>() : nullptr;
    const NarrowTasks tasks(call.in[0].rows(), columns, weight, starts, worker.count);
    for (int64_t task; (task = worker.next(tasks.count())) < tasks.count();) {
      const auto [matrix, first, end] = tasks.at(task);
      const int64_t column = tasks.column(task), wide = smaller(kNarrowColumns, columns - column);
      if (first == end) continue;
      multiply_narrow<Form>(Straight{weight, matrix, worker.scratch}, 0, column, grad + first * depth, depth, end - first, depth,
                            y + first * columns + column, columns, wide, false, worker.scratch + kSourceBytes);
    }
  });
}

}  // namespace weft::ISA
