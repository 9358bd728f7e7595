// matmul_back: y = grad W, for W of any type, as the file has it or in panels.
//
// Meaning  weft/ops/backward.py
// Layout   grad [M, N], W [N, K], y [M, K]; grad and y contiguous
// Method   a task takes up to 256 rows of grad; it widens W a few rows at a time and adds their products: a chain over N
// Bound    arithmetic; widening by the scalar code that defines each type is a tenth of it for 256 rows
#include "core/weight.h"
#include "kernels/strips.h"
#include "pack/panels.h"

namespace weft::ISA {

KERNEL(matmul_back) {
  const Weight& weight = *call.in[1].weight;
  const int64_t rows = call.in[0].rows(), outer = call.in[0].cols(), inner = weight.cols;
  const float* grad = call.in[0].as<float>();
  float *y = call.out[0].as<float>(), *tile = reinterpret_cast<float*>(worker.scratch);
  const bool plain = weight.layout == Layout::rows && weight.dtype == DType::f32;
  const int64_t room = static_cast<int64_t>(kScratchBytes / sizeof(float));
  const int64_t deep = larger(1, smaller(kStripDepth, room / inner));
  const int64_t share = rows_per_task(rows, worker.count, 16, 256), tasks = (rows + share - 1) / share;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t first = task * share, count = smaller(share, rows - first);
    clear(y + first * inner, count * inner);
    for (int64_t n = 0; n < outer; n += deep) {
      const int64_t here = smaller(deep, outer - n);
      const float* from = tile;
      if (plain) from = reinterpret_cast<const float*>(weight.data) + n * inner;
      else
        for (int64_t i = 0; i < here; ++i) read_row(weight, n + i, tile + i * inner);
      add_product(y + first * inner, inner, count, inner, {grad + first * outer + n, outer, 1}, from, inner, here);
    }
  }
}

}  // namespace weft::ISA
