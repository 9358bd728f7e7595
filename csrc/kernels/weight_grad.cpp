// weight_grad: into + gradᵀ x, sequence by sequence.
//
// Meaning  weft/ops/training.py
// Layout   grad [M, N], x [M, K], into, y [N, K] contiguous; segments i32 [B+1]; rows i32 [M] or absent; y may be into
// Method   a task owns columns of the result; a sequence's product is a chain over its rows from zero, then added
// Bound    arithmetic
#include "kernels/batch_rows.h"
#include "kernels/strips.h"

namespace weft::ISA {

KERNEL(weight_grad) {
  const int64_t rows = call.in[0].rows(), outer = call.in[0].cols(), inner = call.in[1].cols();
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>(), *into = call.in[3].as<float>();
  const int32_t *segments = call.in[2].as<int32_t>(), *tokens = call.in[4].present() ? call.in[4].as<int32_t>() : nullptr;
  const int64_t batch = call.in[2].size() - 1;
  float *y = call.out[0].as<float>(), *part = reinterpret_cast<float*>(worker.scratch);
  constexpr int64_t kColumns = 64;
  const int64_t high = static_cast<int64_t>(kScratchBytes / sizeof(float)) / kColumns;  // rows of the result at a time
  const int64_t across = (inner + kColumns - 1) / kColumns, down = (outer + high - 1) / high, tasks = across * down;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t k = task % across * kColumns, wide = smaller(kColumns, inner - k);
    const int64_t n = task / across * high, tall = smaller(high, outer - n);
    if (y != into)
      for (int64_t i = n; i < n + tall; ++i)
        fill(y + i * inner + k, wide, [&](auto at) { return at(into + i * inner + k); });
    each_sequence(segments, batch, tokens, rows, [&](int64_t first, int64_t count) {
      clear(part, tall * kColumns);
      add_product(part, kColumns, tall, wide, {grad + first * outer + n, 1, outer}, x + first * inner + k, inner, count);
      for (int64_t i = 0; i < tall; ++i) {
        float* to = y + (n + i) * inner + k;
        fill(to, wide, [&](auto at) { return at(to) + at(part + i * kColumns); });
      }
    });
  }
}

}  // namespace weft::ISA
