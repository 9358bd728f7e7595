// quantise_rows: rows of floats to rows of int8 blocks with a scale each.
//
// Meaning  weft/ops/quant.py; docs/design/core.md has the formulas
// Layout   x [rows, K] contiguous; y rows of K / block blocks A8<32> or A8<256> (matmul_a8.h)
// Method   a block at a time: largest magnitude, scaling, rounding to nearest even, sums of 16
// Bound    memory, 5 bytes per element
#include "kernels/matmul_a8.h"
#include "kernels/matmul_ints.h"

namespace weft::ISA {

template <int block>
static void quantise(const float* x, float scale, A8<block>& out) {
  for (int i = 0; i < block; i += 16) {
    // Clamped both ways, so that not even a NaN or an infinite scale reaches the conversion out of range.
    const f32x16 q = min(max(load(x + i) * splat(scale), splat(-127.0f)), splat(127.0f));
    out.sum[i / 16] = static_cast<int16_t>(store_i8(out.q + i, q));
  }
}

// Blocks of zeros, and of values so small that their scale overflows, are all zero.
static bool usable(float scale) { return scale - scale == 0; }

static void quantise_block(const float* x, A8<32>& out) {
  const float largest = max_lane(max(abs(load(x)), abs(load(x + 16))));
  const float scale = 127.0f / largest;
  out.d = usable(scale) ? largest / 127.0f : 0.0f;
  quantise(x, usable(scale) ? scale : 0.0f, out);
}

// The value of largest magnitude, with its sign; the first of them when both signs reach it.
static float extreme(const float* x) {
  f32x16 high = load(x), low = high;
  for (int i = 16; i < 256; i += 16) {
    high = max(high, load(x + i));
    low = min(low, load(x + i));
  }
  const float top = max_lane(high), bottom = -max_lane(zero() - low);
  if (top != -bottom) return top > -bottom ? top : bottom;
  int i = 0;
  while (i < 255 && x[i] != top && x[i] != bottom) ++i;
  return x[i];
}

static void quantise_block(const float* x, A8<256>& out) {
  const float m = extreme(x);
  const float scale = -127.0f / m;
  out.d = usable(scale) ? m / -127.0f : 0.0f;
  quantise(x, usable(scale) ? scale : 0.0f, out);
}

template <int block>
static void quantise_row(const float* x, int64_t blocks, A8<block>* out) {
  for (int64_t i = 0; i < blocks; ++i) quantise_block(x + i * block, out[i]);
}

KERNEL(quantise_rows) {
  const int64_t rows = call.in[0].rows(), depth = call.in[0].cols(), block = call.integer("block");
  const int64_t blocks = depth / block;
  for (int64_t row; (row = worker.next()) < rows;) {
    const float* x = call.in[0].as<float>() + row * depth;
    if (block == 32) quantise_row(x, blocks, call.out[0].as<A8<32>>() + row * blocks);
    else quantise_row(x, blocks, call.out[0].as<A8<256>>() + row * blocks);
  }
}

}  // namespace weft::ISA
