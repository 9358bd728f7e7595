// add_layer_norm: out = layer_norm(x + y), row by row: the residual of a model that normalises after each block.
//
// Meaning  weft/ops/norm.py
// Layout   x, y, out [rows, dim] contiguous; w, b [dim]; out may be x or y
// Method   the sum goes to out, then layer_norm of the row in place while it is in L1
// Bound    memory, 12 bytes per element
#include "kernels/norm.h"

namespace weft::ISA {

KERNEL(add_layer_norm) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *x = call.in[0].as<float>(), *y = call.in[1].as<float>();
  const float *weight = call.in[2].as<float>(), *bias = call.in[3].as<float>();
  float* out = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const int64_t at_row = row * dim;
    fill(out + at_row, dim, [&](auto at) { return at(x + at_row) + at(y + at_row); });
    layer_norm_row(out + at_row, out + at_row, weight, bias, dim, eps);
  });
}

}  // namespace weft::ISA
