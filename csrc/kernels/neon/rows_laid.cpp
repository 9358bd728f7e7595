// rows_laid: products of int8 rows and a panel of W that was laid out for them (matmul_laid_neon.h).
//
// Four outputs at a time: the sums of eight rows then fit the registers through all of k, a code is loaded for the 32
// products it takes part in, and what is read again and again stays in the first-level cache. Compiled apart from
// matmul_q: here the compiler orders instructions for the processor's units, there it would move sums to memory.
#include "kernels/matmul_laid_neon.h"

namespace weft::ISA {

// 16 columns of `rows` rows times four outputs.
template <int rows>
WEFT_INLINE void add_sixteen(int32x4_t (&sum)[rows], const std::byte* codes, const int8_t* x, int64_t stride) {
  int8x16_t sixteen[rows];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sixteen[r] = vld1q_s8(x + r * stride);
  const auto code = [=](int g) { return vld1q_s8(reinterpret_cast<const int8_t*>(codes) + g * 16); };
  const int8x16_t first = code(0), second = code(1), third = code(2), fourth = code(3);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r] = vdotq_laneq_s32(sum[r], first, sixteen[r], 0);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r] = vdotq_laneq_s32(sum[r], second, sixteen[r], 1);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r] = vdotq_laneq_s32(sum[r], third, sixteen[r], 2);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r] = vdotq_laneq_s32(sum[r], fourth, sixteen[r], 3);
}
template <int rows>
WEFT_INLINE void begin(int32x4_t (&sum)[rows], int32_t from = 0) {
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) sum[r] = vdupq_n_s32(from);
}

// The integers of block `x` of `rows` rows, `blocks` apart, times the four outputs of the block at w.
template <DType type, int rows>
WEFT_INLINE void dot_laid(int32x4_t (&total)[rows], const std::byte* w, const A8<format_of(type).block>* x,
                          int64_t blocks) {
  constexpr Format f = format_of(type);
  const int64_t stride = blocks * static_cast<int64_t>(sizeof *x);
  begin(total);
#pragma GCC unroll 1
  for (int j = 0; j < f.subs; ++j) {
    constexpr int width = f.block / f.subs;
    int32x4_t sum[rows];
    begin(sum);
    for (int c = 0; c < width; c += 16) add_sixteen(sum, w + (j * width + c) * 4, x->q + j * width + c, stride);
    const int32x4_t scale = vld1q_s32(reinterpret_cast<const int32_t*>(w + Laid<type>::scales_at) + j * 4);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) total[r] = vmlaq_s32(total[r], sum[r], scale);
  }
}

// low += minimum `j` of a block times the sums of `rows` rows under it.
template <int j, int rows>
WEFT_INLINE void add_min(int32x4_t (&low)[rows], const int16_t* mins, const int16x8_t (&sums)[rows]) {
  const int16x4_t min = vld1_s16(mins + 4 * j);
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) low[r] = vmlal_laneq_s16(low[r], min, sums[r], j);
}

// The minima of a block's four outputs times the sums of x under them; sums(r) are those of row r.
template <DType type, int rows, class Sums>
WEFT_INLINE void dot_mins(int32x4_t (&low)[rows], const std::byte* w, Sums sums) {
  begin(low);
  for (int half = 0; half < format_of(type).subs; half += 8) {
    const auto* mins = reinterpret_cast<const int16_t*>(w + Laid<type>::mins_at) + 4 * half;
    int16x8_t eight[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) eight[r] = vld1q_s16(sums(r) + half);
    add_min<0>(low, mins, eight), add_min<1>(low, mins, eight), add_min<2>(low, mins, eight), add_min<3>(low, mins, eight);
    add_min<4>(low, mins, eight), add_min<5>(low, mins, eight), add_min<6>(low, mins, eight), add_min<7>(low, mins, eight);
  }
}

// Four outputs of `rows` rows, of a 32-wide type.
template <DType type, int rows>
WEFT_INLINE void add_blocks(float32x4_t (&acc)[rows], const NotedRows<type>& s, const std::byte* w) {
  using L = Laid<type>;
  for (int64_t b = 0; b < s.blocks; ++b, w += L::bytes) {
    int32x4_t total[rows];
    begin(total, kFloatBits);
    const int64_t stride = s.blocks * static_cast<int64_t>(sizeof *s.x);
    add_sixteen(total, w, s.block(0, b).q, stride);
    add_sixteen(total, w + 64, s.block(0, b).q + 16, stride);
    const float32x4_t d = vld1q_f32(reinterpret_cast<const float*>(w + L::d_at));
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      acc[r] = vfmaq_f32(acc[r], vmulq_n_f32(d, s.block(r, b).d), from_bits(total[r]));
    if constexpr (format_of(type).mins) {
      const float32x4_t m = vld1q_f32(reinterpret_cast<const float*>(w + L::m_at));
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) {
        float shift;
        std::memcpy(&shift, s.note(r, b), 4);
        acc[r] = vfmaq_n_f32(acc[r], m, shift);
      }
    }
  }
}

// Block b of a type with sub-blocks: acc lies in memory, whose place in the registers the sums of a sub-block take.
template <DType type, int rows>
WEFT_INLINE void add_super_block(float (*acc)[4], const NotedRows<type>& s, int64_t b, const std::byte* w) {
  using L = Laid<type>;
  const auto add = [&](const int32x4_t(&total)[rows], float32x4_t by) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r)
      vst1q_f32(acc[r], vfmaq_f32(vld1q_f32(acc[r]), vmulq_n_f32(by, s.block(r, b).d), vcvtq_f32_s32(total[r])));
  };
  int32x4_t total[rows];
  dot_laid<type>(total, w, &s.block(0, b), s.blocks);
  add(total, vld1q_f32(reinterpret_cast<const float*>(w + L::d_at)));
  if constexpr (format_of(type).mins) {
    dot_mins<type>(total, w, [&](int r) {
      return format_of(type).subs == 16 ? s.block(r, b).sum : reinterpret_cast<const int16_t*>(s.note(r, b));
    });
    add(total, vsubq_f32(vdupq_n_f32(0), vld1q_f32(reinterpret_cast<const float*>(w + L::m_at))));
  }
}

// One tile: y of `rows` rows and 16 outputs, of which `columns` are there.
template <DType type, int rows>
static void tile_laid(const NotedRows<type>& s, const std::byte* laid, float* y, int64_t y_stride, int64_t columns) {
  for (int i = 0; i < 4; ++i, laid += s.blocks * Laid<type>::bytes) {
    float32x4_t acc[rows];
    if constexpr (format_of(type).subs == 0) {
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) acc[r] = vdupq_n_f32(0);
      add_blocks(acc, s, laid);
    } else {
      alignas(64) float sums[rows][4] = {};
      for (int64_t b = 0; b < s.blocks; ++b) add_super_block<type, rows>(sums, s, b, laid + b * Laid<type>::bytes);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) acc[r] = vld1q_f32(sums[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) store4_n(y + r * y_stride + 4 * i, acc[r], columns - 4 * i);
  }
}

// As many tiles of `rows` rows as there are, the rest in lower ones.
template <DType type, int rows>
static void tile_all(NotedRows<type> s, int64_t count, const std::byte* laid, float* y, int64_t y_stride, int64_t columns) {
  for (; count >= rows; count -= rows, y += rows * y_stride) {
    tile_laid<type, rows>(s, laid, y, y_stride, columns);
    s.x += rows * s.blocks;
    s.notes += rows * s.blocks * s.words;
  }
  if constexpr (rows > 1) tile_all<type, rows / 2>(s, count, laid, y, y_stride, columns);
}

template <DType type>
void rows_laid(NotedRows<type> s, int64_t count, const std::byte* laid, float* y, int64_t y_stride, int64_t columns) {
  tile_all<type, 8>(s, count, laid, y, y_stride, columns);
}
#define X(name) \
  template void rows_laid(NotedRows<DType::name>, int64_t, const std::byte*, float*, int64_t, int64_t);
WEFT_PACKED_TYPES(X)
#undef X

}  // namespace weft::ISA
