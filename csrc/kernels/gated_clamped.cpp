// gated_clamped: out = (u + 1) g sigmoid(alpha g), of g = min(gate, limit) and u = up within -limit and limit.
//
// Meaning  weft/ops/elementwise.py
// Layout   gate, up, out contiguous, one shape; out may be gate or up
// Method   flat vectors; the sigmoid is that of simd/math.h
// Bound    arithmetic: some 30 instructions for 16 elements
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(gated_clamped) {
  const float *gate = call.in[0].as<float>(), *up = call.in[1].as<float>();
  float* out = call.out[0].as<float>();
  const float limit = static_cast<float>(call.number("limit"));
  const f32x16 most = splat(limit), least = splat(-limit), alpha = splat(static_cast<float>(call.number("alpha")));
  deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
    fill(out + first, count, [&](auto at) {
      const f32x16 g = min(at(gate + first), most), u = max(min(at(up + first), most), least);
      return (u + splat(1.0f)) * (g * sigmoid(g * alpha));
    });
  });
}

}  // namespace weft::ISA
