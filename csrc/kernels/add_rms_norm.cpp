// add_rms_norm: s = x + y, the new residual, and rms_norm(s), row by row.
//
// Meaning  weft/ops/norm.py
// Layout   x, y, s, out [rows, dim] contiguous; w [dim]; s may be x or y, out may be the other
// Method   the sum in one pass, then rms_norm of the row while it is in L1
// Bound    memory, 16 bytes per element
#include "kernels/norm.h"

namespace weft::ISA {

KERNEL(add_rms_norm) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *x = call.in[0].as<float>(), *y = call.in[1].as<float>(), *weight = call.in[2].as<float>();
  float *s = call.out[0].as<float>(), *out = call.out[1].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const int64_t at_row = row * dim;
    fill(s + at_row, dim, [&](auto at) { return at(x + at_row) + at(y + at_row); });
    rms_norm_row(out + at_row, s + at_row, weight, dim, eps);
  });
}

}  // namespace weft::ISA
