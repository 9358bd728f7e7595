// layer_norm: y = (x - mean) / sqrt(variance + eps) * w + b, row by row.
//
// Meaning  weft/ops/norm.py
// Layout   x, y [rows, dim] contiguous; w, b [dim]; y may be x
// Method   three passes: mean, variance of the centred values, result; 16 lane sums in f32, then the fixed tree
// Bound    memory, 8 bytes per element (the later reads of x are in L1)
#include "kernels/norm.h"

namespace weft::ISA {

KERNEL(layer_norm) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *x = call.in[0].as<float>(), *weight = call.in[1].as<float>(), *bias = call.in[2].as<float>();
  float* y = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) {
    layer_norm_row(y + row * dim, x + row * dim, weight, bias, dim, eps);
  });
}

}  // namespace weft::ISA
