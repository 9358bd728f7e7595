// quantise_reference: int8 activation blocks written straight from docs/design/core.md, and the kernel called on a row.
#pragma once
#include <cmath>

#include "kernels/matmul_a8.h"
#include "tests/matmul_cases.h"

namespace weft::test {

template <int block>
A8<block> quantise_reference(const float* x) {
  float extreme = 0;
  for (int i = 0; i < block; ++i)
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  A8<block> out = {};
  if (extreme == 0) return out;
  const float largest = std::abs(extreme), scale = block == 32 ? 127.0f / largest : -127.0f / extreme;
  out.d = block == 32 ? largest / 127.0f : extreme / -127.0f;
  for (int i = 0; i < block; ++i) {
    out.q[i] = static_cast<int8_t>(std::min(127.0f, std::nearbyint(x[i] * scale)));
    out.sum[i / 16] = static_cast<int16_t>(out.sum[i / 16] + out.q[i]);
  }
  return out;
}

template <int block>
std::vector<A8<block>> quantise(const Level& level, const std::vector<float>& x, int64_t rows, int64_t depth,
                                int workers, int shift) {
  std::vector<float> moved(static_cast<size_t>(shift));
  moved.insert(moved.end(), x.begin(), x.end());
  std::vector<A8<block>> out(x.size() / block);
  Operand to{reinterpret_cast<std::byte*>(out.data()), block == 32 ? DType::a8_32 : DType::a8_256, 2, {rows, depth}};
  run_kernel(level, "quantise_rows", {floats(moved, rows, depth, shift)}, {to}, {{"block", block}}, workers);
  return out;
}

}  // namespace weft::test
