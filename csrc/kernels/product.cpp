// product: y = x Mᵀ, for a plain matrix that is trained; of a stack, each group of rows with its own.
//
// Meaning  weft/ops/training.py
// Layout   x [rows, K], M [N, K] or [E, N, K], y [rows, N], contiguous; starts i32 [E+1] or absent
// Method   a task takes some rows and 64 columns of y, for which it turns M around; a chain over K for each element
// Bound    arithmetic; turning M around is a part of it as large as one row of the task's
#include "kernels/grouped_rows.h"
#include "kernels/strips.h"
#include "simd/transpose.h"

namespace weft::ISA {

KERNEL(product) {
  const int64_t rows = call.in[0].rows(), inner = call.in[0].cols(), outer = call.out[0].cols();
  const float* x = call.in[0].as<float>();
  const int32_t* starts = call.n_in > 2 && call.in[2].data ? call.in[2].as<int32_t>() : nullptr;
  float *y = call.out[0].as<float>(), *turned = reinterpret_cast<float*>(worker.scratch);
  constexpr int64_t kPanel = 16 * kStripVectors;
  const int64_t room = static_cast<int64_t>(kScratchBytes / sizeof(float)) / kStripColumns;  // rows of M turned around
  const Tiling tiling(rows, outer, worker.count);
  const GroupedRows groups{starts, starts ? call.in[1].dim[0] : 1, rows, tiling.share};
  const int64_t tasks = groups.pieces() * tiling.across;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const auto [number, first, count] = groups.piece(task / tiling.across);
    if (count <= 0) continue;
    const int64_t n = task % tiling.across * kStripColumns, wide = smaller(kStripColumns, outer - n);
    const float* matrix = call.in[1].as<float>() + number * outer * inner;
    for (int64_t i = first; i < first + count; ++i) clear(y + i * outer + n, wide);
    for (int64_t k = 0; k < inner; k += room) {
      const int64_t deep = smaller(room, inner - k);
      for (int64_t j = 0; j < wide; j += kPanel) {
        const int64_t cols = smaller(kPanel, wide - j);
        turn(turned, kPanel, matrix + (n + j) * inner + k, inner, cols, deep);
        add_product(y + first * outer + n + j, outer, count, cols, {x + first * inner + k, inner, 1}, turned, kPanel, deep);
      }
    }
  }
}

}  // namespace weft::ISA
