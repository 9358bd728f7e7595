// table_grad: into, with each row of grad added to row ids[m].
//
// Meaning  weft/ops/training.py
// Layout   grad [M, D], into, y [V, D] contiguous; ids i32 [M]; y may be into
// Method   a task owns rows of the table and looks through all ids, in order: no two tasks add to one row
// Bound    memory, 8 bytes per element of the table, and V M / 512 comparisons; an id outside the table adds nothing
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(table_grad) {
  const float *grad = call.in[0].as<float>(), *into = call.in[2].as<float>();
  const int32_t* ids = call.in[1].as<int32_t>();
  float* y = call.out[0].as<float>();
  const int64_t taken = call.in[1].size(), table = call.out[0].rows(), dim = call.out[0].cols();
  deal(worker, table, 512, [&](int64_t first, int64_t count) {
    if (y != into)
      std::memcpy(y + first * dim, into + first * dim, static_cast<size_t>(count * dim) * sizeof(float));
    for (int64_t i = 0; i < taken; ++i) {
      if (ids[i] < first || ids[i] >= first + count) continue;
      float* to = y + ids[i] * dim;
      fill(to, dim, [&](auto at) { return at(to) + at(grad + i * dim); });
    }
  });
}

}  // namespace weft::ISA
