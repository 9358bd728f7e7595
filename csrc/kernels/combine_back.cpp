// combine_back: rows weights[t, k] grad[t] at places[t, k], and the products of grad[t] with the rows at its places.
//
// Meaning  weft/ops/experts_backward.py
// Layout   grad [T, D], x, to_x [R, D], weights, to_weights [T, top] contiguous f32; places i32 [T, top]
// Method   some tasks own columns of to_x and go through all tokens, so that rows may have several places; the others own
//          tokens: a product is 16 lane sums and the fixed tree
// Bound    memory, 8 bytes per element of x and top times 8 of grad
#include "kernels/rows.h"

namespace weft::ISA {

KERNEL(combine_back) {
  const int64_t tokens = call.in[0].rows(), dim = call.in[0].cols(), rows = call.in[1].rows(), top = call.in[2].cols();
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>(), *weights = call.in[3].as<float>();
  const int32_t* places = call.in[2].as<int32_t>();
  float *to_x = call.out[0].as<float>(), *to_weights = call.out[1].as<float>();
  constexpr int64_t kColumns = 64, kTokens = 16;
  const int64_t across = (dim + kColumns - 1) / kColumns, tasks = across + (tokens + kTokens - 1) / kTokens;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    if (task >= across) {
      const int64_t first = (task - across) * kTokens;
      for (int64_t t = first; t < smaller(tokens, first + kTokens); ++t)
        for (int64_t k = 0; k < top; ++k) {
          const float *row = x + places[t * top + k] * dim, *to = grad + t * dim;
          to_weights[t * top + k] = sum(fold(dim, zero(), [&](auto at, f32x16 acc) { return fma(at(row), at(to), acc); }));
        }
      continue;
    }
    const int64_t first = task * kColumns, wide = smaller(kColumns, dim - first);
    for (int64_t row = 0; row < rows; ++row) std::memset(to_x + row * dim + first, 0, static_cast<size_t>(wide) * sizeof(float));
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t k = 0; k < top; ++k) {
        float* to = to_x + places[t * top + k] * dim + first;
        const f32x16 weight = splat(weights[t * top + k]);
        fill(to, wide, [&](auto at) { return fma(at(grad + t * dim + first), weight, at(to)); });
      }
  }
}

}  // namespace weft::ISA
