// l2_normalise_back: (grad - x (grad · x) / norm^2) / norm, row by row; grad / eps where the norm is not above eps.
//
// Meaning  weft/ops/backward.py
// Layout   grad, x, out [rows, dim] contiguous; out may be grad
// Method   three passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 12 bytes per element (later reads are in L1)
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(l2_normalise_back) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const float *g = grad + row * dim, *v = x + row * dim;
    const float norm = __builtin_sqrtf(sum_of_squares(v, dim)), safe = norm > eps ? norm : eps;
    const float dot = sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return fma(at(g), at(v), acc); }));
    const f32x16 along = splat(norm > eps ? dot / safe / safe : 0.0f), by = splat(1.0f / safe);
    fill(out + row * dim, dim, [&](auto at) { return (at(g) - at(v) * along) * by; });
  });
}

}  // namespace weft::ISA
