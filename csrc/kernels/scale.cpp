// scale: out = x * by.
//
// Meaning  weft/ops/elementwise.py
// Layout   x, out contiguous, any shape; out may be x
// Method   flat vectors
// Bound    memory, 8 bytes per element
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(scale) {
  const float* x = call.in[0].as<float>();
  float* out = call.out[0].as<float>();
  const f32x16 by = splat(static_cast<float>(call.number("by")));
  deal(worker, call.in[0].size(), kGrain, [&](int64_t first, int64_t count) {
    fill(out + first, count, [&](auto at) { return at(x + first) * by; });
  });
}

}  // namespace weft::ISA
