// rope: the first 2R channels of every head turned by the token's position times a frequency per channel pair.
//
// Meaning  weft/ops/rope.py
// Layout   x, y [T, H, D] contiguous; positions i32 [T]; inv_freq f32 [R], 2R <= D; y may be x
// Method   per token one table of R cosines and sines, shared by its heads; product and sum rounded separately, so that
//          every level gives the same bits
// Bound    memory, 8 bytes per element
#include "kernels/rope_tokens.h"

namespace weft::ISA {

KERNEL(rope) { rope_tokens(call, worker, false); }

}  // namespace weft::ISA
