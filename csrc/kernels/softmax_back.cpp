// softmax_back: y (grad - grad · y), row by row, with y the softmax.
//
// Meaning  weft/ops/backward.py
// Layout   grad, y, out [rows, dim] contiguous; out may be grad
// Method   two passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 12 bytes per element (the second reads are in L1)
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(softmax_back) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *y = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const float *g = grad + row * dim, *v = y + row * dim;
    const f32x16 mean = splat(sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return fma(at(g), at(v), acc); })));
    fill(out + row * dim, dim, [&](auto at) { return at(v) * (at(g) - mean); });
  });
}

}  // namespace weft::ISA
