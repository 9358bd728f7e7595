// rope_back: channels turned back: rope with sines of the other sign.
//
// Meaning  weft/ops/backward.py
// Layout   grad, y [T, H, D] contiguous; positions i32 [T]; inv_freq f32 [R], 2R <= D; y may be grad
// Method   as rope
// Bound    memory, 8 bytes per element
#include "kernels/rope_tokens.h"

namespace weft::ISA {

KERNEL(rope_back) { rope_tokens(call, worker, true); }

}  // namespace weft::ISA
