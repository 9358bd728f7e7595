// attention: every token attends to the tokens of its own sequence in this step; no state.
//
// Meaning  weft/ops/attention.py
// Layout   q, out [T, H, D], k, v [T, G, D] contiguous, H a multiple of G; segments i32 [B+1]; sinks [H] or
//          absent; bias [K, H] of f32, f16 or bf16 and buckets f32 [2R+1], both or neither; out may be q
// Method   kernels/attention_whole.h and attention_block.h; a task is a span of rows of one sequence and key/value head, which transposes
//          each block of keys once for all its rows
// Bound    arithmetic, 4 D flops per row and key
#include "kernels/attention_whole.h"

namespace weft::ISA {

KERNEL(attention) {
  attend_sequences(call, worker, call.flag("causal"), call.integer("window"), static_cast<float>(call.number("softcap")),
                   {optional(call, 4), optional(call, 5), optional(call, 6)});
}

}  // namespace weft::ISA
