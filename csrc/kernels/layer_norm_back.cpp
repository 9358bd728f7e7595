// layer_norm_back: with u = (x - mean) s, s = 1 / sqrt(variance + eps) and h = grad * w: s (h - mean(h) - u mean(h u)).
//
// Meaning  weft/ops/backward.py
// Layout   grad, x, out [rows, dim] contiguous; w [dim]; out may be grad
// Method   four passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 12 bytes per element (later reads are in L1)
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(layer_norm_back) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>(), *weight = call.in[2].as<float>();
  float* out = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps")), count = static_cast<float>(dim);
  deal_rows(worker, rows, dim, [&](int64_t row) {
    const float *g = grad + row * dim, *v = x + row * dim;
    const f32x16 mean = splat(sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return acc + at(v); })) / count);
    const float squares = sum(fold(dim, zero(), [&](auto at, f32x16 acc) {
      const f32x16 centred = at.or_else(at(v) - mean, zero());
      return fma(centred, centred, acc);
    }));
    const f32x16 scale = splat(1.0f / __builtin_sqrtf(squares / count + eps));
    f32x16 plain = zero();
    const float along = sum(fold(dim, zero(), [&](auto at, f32x16 acc) {
      const f32x16 h = at(g) * at(weight);
      plain = plain + h;
      return fma(h, (at(v) - mean) * scale, acc);
    }));
    const f32x16 level = splat(sum(plain) / count), back = splat(along / count);
    fill(out + row * dim, dim, [&](auto at) {
      return scale * (at(g) * at(weight) - level - (at(v) - mean) * scale * back);
    });
  });
}

}  // namespace weft::ISA
