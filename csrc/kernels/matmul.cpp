// matmul: y = act(x Wᵀ + b), float32 activations.
//
// Meaning  weft/ops/matmul.py
// Layout   x [M, K], y [M, N] contiguous; W in panels of any packed type (pack/panels.h), or rows of any type
// Method   register tiles of rows x panels; one fma chain over k per element, kept in y between blocks of k;
//          everything but f32 panels is widened or dequantised to f32 panels in scratch, 256 columns at a time
// Bound    fma throughput from about 8 rows on; memory, one pass over W, below
#include "kernels/matmul_floats.h"

namespace weft::ISA {

KERNEL(matmul) { multiply_floats(call, worker); }

}  // namespace weft::ISA
