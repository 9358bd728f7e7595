// product: y = x Mᵀ, for a plain matrix that is trained.
//
// Meaning  weft/ops/training.py
// Layout   x [rows, K], M [N, K], y [rows, N], contiguous
// Method   a task takes some rows and 64 columns of y, for which it turns M around; a chain over K for each element
// Bound    arithmetic; turning M around is a part of it as large as one row of the task's
#include "kernels/strips.h"
#include "simd/transpose.h"

namespace weft::ISA {

KERNEL(product) {
  const int64_t rows = call.in[0].rows(), inner = call.in[0].cols(), outer = call.in[1].rows();
  const float *x = call.in[0].as<float>(), *matrix = call.in[1].as<float>();
  float *y = call.out[0].as<float>(), *turned = reinterpret_cast<float*>(worker.scratch);
  constexpr int64_t kPanel = 16 * kStripVectors;
  const int64_t room = static_cast<int64_t>(kScratchBytes / sizeof(float)) / kStripColumns;  // rows of M turned around
  const Tiling tiling(rows, outer, worker.count);
  for (int64_t task; (task = worker.next(tiling.tasks)) < tiling.tasks;) {
    const auto [first, count, n, wide] = tiling.at(task);
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
