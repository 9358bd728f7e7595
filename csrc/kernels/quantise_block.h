// quantise_block: floats to blocks of int8 with a scale each, for the kernels that write such rows. The floats come from
// a function of their place, 16 at a time, so that what makes them need not store them:
//
//   quantise_blocks(out, count, [&](int64_t i) { return load(x + i); });
#pragma once
#include "kernels/matmul_a8.h"
#include "kernels/matmul_ints.h"
#include "kernels/rows.h"

namespace weft::ISA {

// Blocks of zeros, and of values so small that their scale overflows, are all zero.
WEFT_INLINE bool usable(float scale) { return scale - scale == 0; }

// Clamped both ways, so that not even a NaN or an infinite scale reaches the conversion out of range.
template <int block>
WEFT_INLINE void quantise_16(A8<block>& out, int i, f32x16 x, f32x16 scale) {
  out.sum[i / 16] = static_cast<int16_t>(store_i8(out.q + i, min(max(x * scale, splat(-127.0f)), splat(127.0f))));
}

template <class F>
WEFT_INLINE void quantise_block(A8<32>& out, F at) {
  const f32x16 a = at(0), b = at(16);
  const float largest = max_lane(max(abs(a), abs(b)));
  const float scale = 127.0f / largest;
  out.d = usable(scale) ? largest / 127.0f : 0.0f;
  const f32x16 by = splat(usable(scale) ? scale : 0.0f);
  quantise_16(out, 0, a, by);
  quantise_16(out, 16, b, by);
}

// The value of largest magnitude, with its sign; the first of them when both signs reach it.
WEFT_INLINE float extreme(const float* x) {
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

template <class F>
WEFT_INLINE void quantise_block(A8<256>& out, F at) {
  alignas(64) float x[256];
  for (int i = 0; i < 256; i += 16) store(x + i, at(i));
  const float m = extreme(x);
  const float scale = -127.0f / m;
  out.d = usable(scale) ? m / -127.0f : 0.0f;
  const f32x16 by = splat(usable(scale) ? scale : 0.0f);
  for (int i = 0; i < 256; i += 16) quantise_16(out, i, load(x + i), by);
}

template <int block, class F>
WEFT_INLINE void quantise_blocks(A8<block>* out, int64_t count, F at) {
  for (int64_t i = 0; i < count; ++i) quantise_block(out[i], [&](int64_t j) { return at(i * block + j); });
}

// Calls f(out) with the rows of a call as the blocks that they are.
template <class F>
WEFT_INLINE void by_block(const Operand& rows, int64_t block, F f) {
  if (block == 32) f(rows.as<A8<32>>());
  else f(rows.as<A8<256>>());
}

// quantise_blocks for all of a call's rows, end to end: a task is a handful of blocks.
template <class F>
WEFT_INLINE void quantise_all(const Call& call, const Worker& worker, F at) {
  const int64_t block = call.integer("block"), size = call.out[0].size();
  by_block(call.out[0], block, [&](auto* out) {
    deal(worker, size / block, kGrain / block, [&](int64_t first, int64_t count) {
      quantise_blocks(out + first, count, [&](int64_t i) { return at(first * block + i); });
    });
  });
}

}  // namespace weft::ISA
