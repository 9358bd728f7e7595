// gated_clamped_back: the gradients of (u + 1) g sigmoid(alpha g), of g = min(gate, limit) and u = up within -limit and limit.
//
// Meaning  weft/ops/experts_backward.py
// Layout   grad, gate, up and both results contiguous, one shape; the first may be grad or gate, the second up
// Method   flat vectors, both results from one load; nothing goes through what is clamped
// Bound    arithmetic: some 40 instructions for 16 elements
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(gated_clamped_back) {
  const float *grad = call.in[0].as<float>(), *gate = call.in[1].as<float>(), *up = call.in[2].as<float>();
  float *to_gate = call.out[0].as<float>(), *to_up = call.out[1].as<float>();
  const float limit = static_cast<float>(call.number("limit"));
  const f32x16 most = splat(limit), least = splat(-limit), alpha = splat(static_cast<float>(call.number("alpha")));
  const f32x16 one = splat(1.0f);
  deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i += 16) {
      const int64_t n = smaller(16, first + count - i);
      const f32x16 outward = load_n(grad + i, n), raw = load_n(gate + i, n), value = load_n(up + i, n);
      const f32x16 g = min(raw, most), u = max(min(value, most), least), share = sigmoid(g * alpha);
      const f32x16 slope = share * fma(alpha * g, one - share, one);
      store_n(to_gate + i, where_less(raw, most, outward * (u + one) * slope, zero()), n);
      store_n(to_up + i, where_less(abs(value), most, outward * g * share, zero()), n);
    }
  });
}

}  // namespace weft::ISA
