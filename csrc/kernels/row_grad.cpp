// row_grad: into + the sum of grad's rows, sequence by sequence.
//
// Meaning  weft/ops/training.py
// Layout   grad [M each, D], into, y [D] contiguous; segments i32 [B+1]; rows i32 [M] or absent; y may be into
// Method   a task owns columns; a sequence's sum is a chain over its rows from zero, then added
// Bound    memory, 4 bytes per element of grad
#include "kernels/batch_rows.h"

namespace weft::ISA {

KERNEL(row_grad) {
  const int64_t each = static_cast<int64_t>(call.number("each"));
  const int64_t rows = call.in[0].rows() / each, dim = call.in[0].cols();
  const float *grad = call.in[0].as<float>(), *into = call.in[2].as<float>();
  const int32_t *segments = call.in[1].as<int32_t>(), *tokens = call.in[3].present() ? call.in[3].as<int32_t>() : nullptr;
  const int64_t batch = call.in[1].size() - 1;
  float* y = call.out[0].as<float>();
  const int64_t tasks = (dim + 15) / 16;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t at = task * 16, wide = smaller(16, dim - at);
    f32x16 total = load_n(into + at, wide);
    each_sequence(segments, batch, tokens, rows, [&](int64_t first, int64_t count) {
      f32x16 part = zero();
      for (int64_t row = first * each; row < (first + count) * each; ++row) part = part + load_n(grad + row * dim + at, wide);
      total = total + part;
    });
    store_n(y + at, total, wide);
  }
}

}  // namespace weft::ISA
