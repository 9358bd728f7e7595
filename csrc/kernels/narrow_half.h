// narrow_half: blocks of a product in half precision, at levels with its arithmetic.
//
// 256 numbers of a row of x are scaled by the power of two that takes the largest of them to between 16 and 32, 64 x 16 weights
// by one that takes their largest to between 8 and 16. So a sum of 64 products stays below 32,768: none overflows, whatever the
// sizes, and what is lost at the lower end is 2^-29 of the largest. Sums of 64 are added up in float32.
#pragma once
#include "kernels/halves.h"
#include "kernels/narrow_blocks.h"

namespace weft::ISA {

struct HalfForm {
  static constexpr int kTileRows = 8;
  static constexpr int64_t kBytes = (kNarrowDepth * kNarrowColumns + kNarrowRows * kNarrowDepth) * 2;
  static constexpr uint32_t kRowExponent = 127 + 4, kWeightExponent = 127 + 3;

  Half *strip, *row;                            // [strips][depth][16], [rows][depth]
  float of_chain[kNarrowStrips][kNarrowChains];  // what undoes the scales
  float of_row[kNarrowRows];

  explicit HalfForm(std::byte* scratch) : strip(reinterpret_cast<Half*>(scratch)), row(strip + kNarrowDepth * kNarrowColumns) {}

  // The power of two that takes numbers up to `most` to those of this exponent, and what undoes it. Where a number is not
  // finite they stay as they are, and so does what is not finite.
  static WEFT_INLINE float scale_for(float most, uint32_t exponent, float& undo) {
    const uint32_t found = bit_cast<uint32_t>(most) >> 23;
    const uint32_t taken = found == 255 ? exponent : found < 5 ? 5 : found;
    undo = bit_cast<float>((127u - exponent + taken) << 23);
    return bit_cast<float>((127u + exponent - taken) << 23);
  }

  // Rows [at, at + deep) of a strip, `deep` at most a chain: 16 columns of `from`, of which `columns` exist.
  WEFT_INLINE void put(int64_t index, int64_t at, const float* from, int64_t stride, int64_t deep, int64_t columns) {
    Half* to = strip + (index * kNarrowDepth + at) * 16;
    const auto read = [&](int64_t d) { return columns == 16 ? load(from + d * stride) : load_n(from + d * stride, columns); };
    float32x4_t most[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int64_t d = 0; d < deep; ++d) {
      const f32x16 value = read(d);
      for (int i = 0; i < 4; ++i) most[i] = vmaxq_f32(most[i], vabsq_f32(value.v[i]));
    }
    const float all = vmaxvq_f32(vmaxq_f32(vmaxq_f32(most[0], most[1]), vmaxq_f32(most[2], most[3])));
    const f32x16 scale = splat(scale_for(all, kWeightExponent, of_chain[index][at / kNarrowChain]));
    for (int64_t d = 0; d < deep; ++d) {
      const f32x16 value = read(d) * scale;
      vst1q_f16(to + d * 16, vcombine_f16(vcvt_f16_f32(value.v[0]), vcvt_f16_f32(value.v[1])));
      vst1q_f16(to + d * 16 + 8, vcombine_f16(vcvt_f16_f32(value.v[2]), vcvt_f16_f32(value.v[3])));
    }
  }

  WEFT_INLINE void put_row(int64_t index, const float* x, int64_t deep) {
    float32x4_t most[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
    float rest = 0;
    int64_t k = 0;
    for (; k + 8 <= deep; k += 8)
      for (int i = 0; i < 2; ++i) most[i] = vmaxq_f32(most[i], vabsq_f32(vld1q_f32(x + k + 4 * i)));
    for (; k < deep; ++k) rest = vmaxs_f32(rest, __builtin_fabsf(x[k]));
    const float scale = scale_for(vmaxs_f32(rest, vmaxvq_f32(vmaxq_f32(most[0], most[1]))), kRowExponent, of_row[index]);
    Half* to = row + index * kNarrowDepth;
    for (k = 0; k < deep; k += 8) vst1q_f16(to + k, read_half(x + k, deep - k, scale));
  }
  // NaN if either is, as the vectors' instruction.
  static WEFT_INLINE float vmaxs_f32(float a, float b) { return vget_lane_f32(vmax_f32(vdup_n_f32(a), vdup_n_f32(b)), 0); }

  template <int R>
  void tile(int64_t r, int64_t s, int64_t deep, float* y, int64_t y_stride, int64_t columns, bool more) const {
    for (int64_t at = 0; at < deep; at += kNarrowChain, more = true) {
      const int64_t end = smaller(deep, at + kNarrowChain);
      const Half *x = row + r * kNarrowDepth, *w = strip + s * kNarrowDepth * 16;
      Half8 sums[R][2];
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) sums[i][0] = sums[i][1] = vdupq_n_f16(0);
      for (int64_t k = at; k < end; k += 8) add_columns(x + k, kNarrowDepth, w + k * 16, smaller(8, end - k), sums);
      const float of_weights = of_chain[s][at / kNarrowChain];
#pragma GCC unroll 16
      for (int i = 0; i < R; ++i) {
        float* to = y + (r + i) * y_stride;
        const f32x16 before = !more ? zero() : columns == 16 ? load(to) : load_n(to, columns);
        const f32x16 total = fma(widened(sums[i]), splat(of_weights * of_row[r + i]), before);
        if (columns == 16) store(to, total);
        else store_n(to, total, columns);
      }
    }
  }
  template <int R = kTileRows>
  void tile_sized(int64_t height, int64_t r, int64_t s, int64_t deep, float* y, int64_t y_stride, int64_t columns, bool more) const {
    if (height == R) return tile<R>(r, s, deep, y, y_stride, columns, more);
    if constexpr (R > 1) tile_sized<R - 1>(height, r, s, deep, y, y_stride, columns, more);
  }

  // y [rows, wide] = rows times strips, or with `more` that added to it.
  void multiply(int64_t rows, int64_t deep, float* y, int64_t y_stride, int64_t wide, bool more) const {
    for (int64_t s = 0; s * 16 < wide; ++s)
      for (int64_t r = 0, height; r < rows; r += height) {
        height = (rows - r + kTileRows - 1) / kTileRows;
        height = (rows - r + height - 1) / height;
        tile_sized(height, r, s, deep, y + s * 16, y_stride, smaller(16, wide - s * 16), more);
      }
  }
};

}  // namespace weft::ISA
