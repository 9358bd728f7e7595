// product_back: y = grad M, for a plain matrix.
//
// Meaning  weft/ops/training.py
// Layout   grad [rows, N], M [N, K], y [rows, K], contiguous
// Method   a chain over N for each element; a task takes some rows
// Bound    arithmetic
#include "kernels/strips.h"

namespace weft::ISA {

KERNEL(product_back) {
  const int64_t rows = call.in[0].rows(), outer = call.in[0].cols(), inner = call.in[1].cols();
  const float *grad = call.in[0].as<float>(), *matrix = call.in[1].as<float>();
  float* y = call.out[0].as<float>();
  const int64_t share = rows_per_task(rows, worker.count, 6, 96), tasks = (rows + share - 1) / share;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t first = task * share, count = smaller(share, rows - first);
    clear(y + first * inner, count * inner);
    add_product(y + first * inner, inner, count, inner, {grad + first * outer, outer, 1}, matrix, inner, outer);
  }
}

}  // namespace weft::ISA
