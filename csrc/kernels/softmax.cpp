// softmax: y = e^(x - max) / sum, row by row.
//
// Meaning  weft/ops/reduce.py
// Layout   x, y [rows, dim] contiguous; y may be x
// Method   maximum; exponentials into y with 16 lane sums and the fixed tree; division
// Bound    arithmetic: one exp per element
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(softmax) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float* x = call.in[0].as<float>();
  float* y = call.out[0].as<float>();
  const f32x16 lowest = splat(-__builtin_inff());
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const float* from = x + row * dim;
    float* to = y + row * dim;
    f32x16 top = splat(max_lane(fold(dim, lowest, [&](auto at, f32x16 acc) {
      return max(acc, at.or_else(at(from), lowest));
    })));
    fill(to, dim, [&](auto at) { return exp_negative(at(from) - top); });
    f32x16 total = splat(sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return acc + at(to); })));
    fill(to, dim, [&](auto at) { return at(to) / total; });
  });
}

}  // namespace weft::ISA
