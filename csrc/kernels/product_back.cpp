// product_back: y = grad M, for a plain matrix; of a stack, each group of rows with its own.
//
// Meaning  weft/ops/training.py
// Layout   grad [rows, N], M [N, K] or [E, N, K], y [rows, K], contiguous; starts i32 [E+1] or absent
// Method   a chain over N for each element; a task takes some rows and 64 columns
// Bound    arithmetic
#include "kernels/grouped_rows.h"
#include "kernels/strips.h"

namespace weft::ISA {

KERNEL(product_back) {
  const int64_t rows = call.in[0].rows(), outer = call.in[0].cols(), inner = call.in[1].cols();
  const float* grad = call.in[0].as<float>();
  const int32_t* starts = call.n_in > 2 && call.in[2].data ? call.in[2].as<int32_t>() : nullptr;
  float* y = call.out[0].as<float>();
  const Tiling tiling(rows, inner, worker.count);
  const GroupedRows groups{starts, starts ? call.in[1].dim[0] : 1, rows, tiling.share};
  const int64_t tasks = groups.pieces() * tiling.across;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const auto [number, first, count] = groups.piece(task / tiling.across);
    if (count <= 0) continue;
    const int64_t k = task % tiling.across * kStripColumns, wide = smaller(kStripColumns, inner - k);
    const float* matrix = call.in[1].as<float>() + number * outer * inner;
    for (int64_t i = first; i < first + count; ++i) clear(y + i * inner + k, wide);
    add_product(y + first * inner + k, inner, count, wide, {grad + first * outer, outer, 1}, matrix + k, inner, outer);
  }
}

}  // namespace weft::ISA
