// hadamard: y = (F kron H / sqrt(size) kron I) x, row by row; H is Walsh's matrix, F a small orthogonal one.
//
// Meaning  weft/ops/hadamard.py
// Layout   x, y [rows, parts * size * stride] contiguous; factor f32 [parts * parts] or none; y may be x
// Method   16 neighbours in registers, then butterflies between vectors, in scratch where F follows; sums by pairs, in one
//          order at every level
// Bound    arithmetic: log2(size) + 2 parts operations an element
#include "kernels/hadamard_row.h"

namespace weft::ISA {

KERNEL(hadamard) {
  const int64_t rows = call.in[0].rows(), columns = call.in[0].cols(), size = call.integer("size"), stride = call.integer("stride");
  const HadamardShape shape{columns / (size * stride), size, stride};
  const bool inverse = call.flag("inverse");
  const float *x = call.in[0].as<float>(), *factor = call.in[1].as<float>();
  float *y = call.out[0].as<float>(), *scratch = reinterpret_cast<float*>(worker.scratch);
  deal_rows(worker, rows, columns * 8, [&](int64_t row) {
    hadamard_row(y + row * columns, x + row * columns, factor, inverse, shape, scratch);
  });
}

}  // namespace weft::ISA
