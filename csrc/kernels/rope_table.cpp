// rope_table: the cosines and sines that rope turns by, for all layers of a step.
//
// Meaning  weft/ops/rope.py
// Layout   positions i32 [T], or rows of them [A, T] with axes f32 [R]; inv_freq f32 [R]; y [T, 2R] contiguous, cosines
//          and then sines
// Method   double precision, rounded once (sine.h); pairs of one row of positions together
// Bound    arithmetic: some 30 instructions of doubles for a cosine and its sine
#include "kernels/rows.h"
#include "kernels/sine.h"

namespace weft::ISA {

KERNEL(rope_table) {
  const int64_t tokens = call.in[0].cols(), pairs = call.in[1].cols();
  const bool by_axis = call.n_in > 2 && call.in[2].present();
  const int64_t rows = by_axis ? call.in[0].rows() : 1;
  const int32_t* positions = call.in[0].as<int32_t>();
  const float *inv_freq = call.in[1].as<float>(), *axes = by_axis ? call.in[2].as<float>() : nullptr;
  const float scale = static_cast<float>(call.number("scale"));
  float* y = call.out[0].as<float>();
  deal_rows(worker, tokens, 32 * pairs, [&](int64_t token) {  // 32: a pair costs as much as that many elements elsewhere
    float* cosine = y + token * 2 * pairs;
    bool same = true;  // a token of text, in one go, for the bits of a table without axes
    for (int64_t row = 1; row < rows; ++row) same &= positions[row * tokens + token] == positions[token];
    for (int64_t first = 0, end = 0; first < pairs; first = end) {
      end = same ? pairs : first + 1;
      while (end < pairs && axes[end] == axes[first]) ++end;
      const int64_t row = same ? 0 : static_cast<int64_t>(axes[first]);
      cosines_and_sines(static_cast<float>(positions[row * tokens + token]), inv_freq + first, end - first, scale,
                        cosine + first, cosine + pairs + first);
    }
  });
}

}  // namespace weft::ISA
