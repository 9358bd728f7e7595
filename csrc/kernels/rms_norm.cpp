// rms_norm: y = x / sqrt(mean(x^2) + eps) * w, row by row.
//
// Meaning  weft/ops/norm.py
// Layout   x, y [rows, dim] contiguous; w [dim]; y may be x
// Method   two passes; 16 lane sums in f32, then the fixed tree
// Bound    memory, 8 bytes per element (the second read of x is in L1)
#include "simd/simd.h"

namespace weft::ISA {

static float sum_of_squares(const float* x, int64_t dim) {
  f32x16 acc = zero();
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) acc = fma(load(x + i), load(x + i), acc);
  if (i < dim) {
    f32x16 tail = load_n(x + i, dim - i);
    acc = fma(tail, tail, acc);
  }
  return sum(acc);
}

KERNEL(rms_norm) {
  const int64_t rows = call.in[0].rows(), dim = call.in[0].cols();
  const float *x = call.in[0].as<float>(), *weight = call.in[1].as<float>();
  float* y = call.out[0].as<float>();
  const float eps = static_cast<float>(call.number("eps"));
  for (int64_t row; (row = worker.next()) < rows;) {
    const float* from = x + row * dim;
    float* to = y + row * dim;
    f32x16 scale = splat(1.0f / __builtin_sqrtf(sum_of_squares(from, dim) / static_cast<float>(dim) + eps));
    int64_t i = 0;
    for (; i + 16 <= dim; i += 16) store(to + i, load(from + i) * scale * load(weight + i));
    if (i < dim) store_n(to + i, load_n(from + i, dim - i) * scale * load_n(weight + i, dim - i), dim - i);
  }
}

}  // namespace weft::ISA
