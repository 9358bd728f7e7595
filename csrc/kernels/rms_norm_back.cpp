// rms_norm_back: with s = 1 / sqrt(mean(x^2) + eps) and h = grad * w: s h - x s^3 mean(h x), row by row.
//
// Meaning  weft/ops/backward.py
// Layout   grad, x, out [rows, dim] contiguous; w [dim]; out may be grad
// Method   three passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 12 bytes per element (later reads are in L1)
#include "kernels/norm.h"

namespace weft::ISA {

KERNEL(rms_norm_back) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>(), *weight = call.in[2].as<float>();
  float* out = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const float *g = grad + row * dim, *v = x + row * dim;
    const f32x16 scale = rms_scale(v, dim, eps);
    const float along = sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return fma(at(g) * at(weight), at(v), acc); }));
    const f32x16 back = splat(along / static_cast<float>(dim)) * scale * scale;
    fill(out + row * dim, dim, [&](auto at) { return scale * (at(g) * at(weight) - at(v) * back); });
  });
}

}  // namespace weft::ISA
