// product: y = x Mᵀ, for a plain matrix that is trained.
//
// Meaning  weft/ops/training.py
// Layout   x [rows, K], M [N, K], y [rows, N], contiguous
// Method   a task takes some rows, and M turned around a few columns of y at a time; a chain over K for each element
// Bound    arithmetic; turning M around is a 1/96 of it
#include "kernels/strips.h"

namespace weft::ISA {

KERNEL(product) {
  const int64_t rows = call.in[0].rows(), inner = call.in[0].cols(), outer = call.in[1].rows();
  const float *x = call.in[0].as<float>(), *matrix = call.in[1].as<float>();
  float *y = call.out[0].as<float>(), *turned = reinterpret_cast<float*>(worker.scratch);
  constexpr int64_t kColumns = 64;
  const int64_t room = static_cast<int64_t>(kScratchBytes / sizeof(float)) / kColumns;  // rows of M turned around
  const int64_t share = rows_per_task(rows, worker.count, 6, 96), tasks = (rows + share - 1) / share;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t first = task * share, count = smaller(share, rows - first);
    clear(y + first * outer, count * outer);
    for (int64_t n = 0; n < outer; n += kColumns) {
      const int64_t wide = smaller(kColumns, outer - n);
      for (int64_t k = 0; k < inner; k += room) {
        const int64_t deep = smaller(room, inner - k);
        for (int64_t j = 0; j < wide; ++j)
          for (int64_t d = 0; d < deep; ++d) turned[d * kColumns + j] = matrix[(n + j) * inner + k + d];
        add_product(y + first * outer + n, outer, count, wide, {x + first * inner + k, inner, 1}, turned, kColumns, deep);
      }
    }
  }
}

}  // namespace weft::ISA
