// dropout: x with some elements zero and the others larger.
//
// Meaning  weft/ops/dropout.py
// Layout   x, y [R, C] contiguous; draws i32 [R, 3], or with rows i32 [R] of any number of rows; y may be x
// Method   a row's factors are drawn 128 at a time by Philox from its key, its place, the site and the column
// Bound    arithmetic: ten rounds of two products for eight elements
#include "kernels/philox.h"

namespace weft::ISA {

KERNEL(dropout) {
  const int64_t rows = call.in[0].rows(), cols = call.in[0].cols();
  const float* x = call.in[0].as<float>();
  const int32_t* draws = call.in[1].as<int32_t>();
  const int32_t* chosen = call.n_in > 2 && call.in[2].present() ? call.in[2].as<int32_t>() : nullptr;
  float* y = call.out[0].as<float>();
  const Dropping dropping(call.number("rate"));
  const uint32_t site = static_cast<uint32_t>(call.integer("site"));
  deal_rows(worker, rows, cols, [&](int64_t row) {
    const int32_t* own = draws + 3 * (chosen ? chosen[row] : row);
    const Draw draw{static_cast<uint32_t>(own[0]), static_cast<uint32_t>(own[1]), static_cast<uint32_t>(own[2]), site, 0};
    alignas(64) float factors[kTurns * kTurn];
    for (int64_t first = 0; first < cols; first += kTurns * kTurn) {
      const int64_t here = smaller(kTurns * kTurn, cols - first), at = row * cols + first;
      dropping.fill(factors, draw, first / kTurn, (here + kTurn - 1) / kTurn);
      fill(y + at, here, [&](auto lane) { return lane(x + at) * lane(factors); });
    }
  });
}

}  // namespace weft::ISA
