// matmul_back: y = grad W, for W of any type, as the file has it or in panels; of a stack, each group of rows with its own.
//
// Meaning  weft/ops/backward.py
// Layout   grad [M, N], W [N, K] or a stack of them, y [M, K]; grad and y contiguous; starts i32 [E+1] or absent
// Method   a task is up to 256 rows of grad and 256 columns of y; it widens 64 rows of W at a time and adds their products: a
//          chain over N for each element
// Bound    arithmetic; widening W is some hundredths of it for 256 rows
#include "kernels/grouped_rows.h"
#include "kernels/strips.h"
#include "kernels/weight_rows.h"

namespace weft::ISA {

KERNEL(matmul_back) {
  const Weight& weight = *call.in[1].weight;
  const int64_t rows = call.in[0].rows(), outer = call.in[0].cols(), inner = weight.cols;
  const float* grad = call.in[0].as<float>();
  const int32_t* starts = call.n_in > 2 && call.in[2].data ? call.in[2].as<int32_t>() : nullptr;
  float *y = call.out[0].as<float>(), *tile = reinterpret_cast<float*>(worker.scratch);
  const int64_t across = (inner + kDepth - 1) / kDepth;
  const int64_t share = larger(32, smaller(256, rows * across / (4 * worker.count)));
  const GroupedRows groups{starts, weight.matrices, rows, share};
  const int64_t tasks = groups.pieces() * across;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t k = task % across * kDepth, wide = smaller(kDepth, inner - k);
    const auto [matrix, first, count] = groups.piece(task / across);
    if (count <= 0) continue;
    for (int64_t i = first; i < first + count; ++i) clear(y + i * inner + k, wide);
    const WeightRows source{weight, matrix, tile};
    for (int64_t n = 0; n < outer; n += WeightRows::kTileRows) {
      const int64_t here = smaller(WeightRows::kTileRows, outer - n);
      const auto [from, stride] = source.read(n, here, k, wide);
      add_product(y + first * inner + k, inner, count, wide, {grad + first * outer + n, outer, 1}, from, stride, here);
    }
  }
}

}  // namespace weft::ISA
