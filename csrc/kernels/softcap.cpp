// softcap: out = cap * tanh(x / cap), which lets small numbers through and none beyond the cap.
//
// Meaning  weft/ops/elementwise.py
// Layout   x, out contiguous, any shape; out may be x
// Method   flat vectors; the function is that of simd/math.h
// Bound    arithmetic: about 30 instructions and two divisions for 16 elements
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(softcap) {
  const float* x = call.in[0].as<float>();
  float* out = call.out[0].as<float>();
  const f32x16 cap = splat(static_cast<float>(call.number("cap")));
  deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
    fill(out + first, count, [&](auto at) { return cap * tanh(at(x + first) / cap); });
  });
}

}  // namespace weft::ISA
