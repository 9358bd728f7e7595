// put_rows: rows of grad added up where take_rows took them, zeros elsewhere.
//
// Meaning  weft/ops/backward.py
// Layout   grad [L, D], rows [L] int32, out [T, D], contiguous
// Method   a task owns rows of the result and looks through all of `rows`, in order: no two tasks add to one row
// Bound    memory, and T * L / 32 comparisons
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(put_rows) {
  const float* grad = call.in[0].as<float>();
  const int32_t* rows = call.in[1].as<int32_t>();
  float* out = call.out[0].as<float>();
  const int64_t taken = call.in[1].size(), tokens = call.out[0].rows(), dim = call.out[0].cols();
  deal(worker, tokens, 32, [&](int64_t first, int64_t count) {
    std::memset(out + first * dim, 0, static_cast<size_t>(count * dim) * sizeof(float));
    for (int64_t i = 0; i < taken; ++i) {
      if (rows[i] < first || rows[i] >= first + count) continue;
      float* to = out + rows[i] * dim;
      fill(to, dim, [&](auto at) { return at(to) + at(grad + i * dim); });
    }
  });
}

}  // namespace weft::ISA
