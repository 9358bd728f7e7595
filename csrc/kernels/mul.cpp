// mul: out = x * y.
//
// Meaning  weft/ops/elementwise.py
// Layout   x, out [..., D] contiguous; y the same, or [D]; out may be x or y
// Method   flat vectors, or row by row when y is one row
// Bound    memory, 12 bytes per element
#include "kernels/binary.h"

namespace weft::ISA {

KERNEL(mul) {
  binary(call, worker, [](f32x16 x, f32x16 y) { return x * y; });
}

}  // namespace weft::ISA
