// rms_norm: y = x / sqrt(mean(x^2) + eps) * w, row by row.
//
// Meaning  weft/ops/norm.py
// Layout   x, y [rows, dim] contiguous; w [dim]; y may be x
// Method   two passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 8 bytes per element (the second read of x is in L1)
#include "kernels/norm.h"

namespace weft::ISA {

KERNEL(rms_norm) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *x = call.in[0].as<float>(), *weight = call.in[1].as<float>();
  float* y = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) { rms_norm_row(y + row * dim, x + row * dim, weight, dim, eps); });
}

}  // namespace weft::ISA
