// rope_table: the cosines and sines that rope turns by, for all layers of a step.
//
// Meaning  weft/ops/rope.py
// Layout   positions i32 [T]; inv_freq f32 [R]; y [T, 2R] contiguous, cosines and then sines
// Method   double precision, rounded once (sine.h)
// Bound    arithmetic: some 30 instructions of doubles for a cosine and its sine
#include "kernels/rows.h"
#include "kernels/sine.h"

namespace weft::ISA {

KERNEL(rope_table) {
  const int64_t tokens = call.in[0].cols(), pairs = call.in[1].cols();
  const int32_t* positions = call.in[0].as<int32_t>();
  const float* inv_freq = call.in[1].as<float>();
  const float scale = static_cast<float>(call.number("scale"));
  float* y = call.out[0].as<float>();
  deal_rows(worker, tokens, 32 * pairs, [&](int64_t token) {  // 32: a pair costs as much as that many elements elsewhere
    float* cosine = y + token * 2 * pairs;
    cosines_and_sines(static_cast<float>(positions[token]), inv_freq, pairs, scale, cosine, cosine + pairs);
  });
}

}  // namespace weft::ISA
