// l2_normalise: y = x / max(|x|, eps), row by row.
//
// Meaning  weft/ops/norm.py
// Layout   x, y [rows, dim] contiguous; y may be x
// Method   two passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 8 bytes per element (the second read of x is in L1)
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(l2_normalise) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float* x = call.in[0].as<float>();
  float* y = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const float* from = x + row * dim;
    float norm = __builtin_sqrtf(sum_of_squares(from, dim));
    f32x16 by = splat(norm > eps ? norm : eps);
    fill(y + row * dim, dim, [&](auto at) { return at(from) / by; });
  });
}

}  // namespace weft::ISA
