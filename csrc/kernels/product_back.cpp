// product_back: y = grad M, for a plain matrix.
//
// Meaning  weft/ops/training.py
// Layout   grad [rows, N], M [N, K], y [rows, K], contiguous
// Method   a chain over N for each element; a task takes some rows and 64 columns
// Bound    arithmetic
#include "kernels/strips.h"

namespace weft::ISA {

KERNEL(product_back) {
  const int64_t rows = call.in[0].rows(), outer = call.in[0].cols(), inner = call.in[1].cols();
  const float *grad = call.in[0].as<float>(), *matrix = call.in[1].as<float>();
  float* y = call.out[0].as<float>();
  const Tiling tiling(rows, inner, worker.count);
  for (int64_t task; (task = worker.next(tiling.tasks)) < tiling.tasks;) {
    const auto [first, count, k, wide] = tiling.at(task);
    for (int64_t i = first; i < first + count; ++i) clear(y + i * inner + k, wide);
    add_product(y + first * inner + k, inner, count, wide, {grad + first * outer, outer, 1}, matrix + k, inner, outer);
  }
}

}  // namespace weft::ISA
