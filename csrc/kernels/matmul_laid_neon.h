// matmul_laid_neon: matmul_q of many rows with sdot. A panel of W is laid out once for all rows of a task: codes as
// signed bytes without their offset, scales as numbers that need no conversion.
//
// Four outputs at a time: the sums of eight rows then fit the registers through all of k, a code is loaded for the 32
// products it takes part in, and what is read again and again stays in the first-level cache.
#pragma once
#include "kernels/matmul_a8.h"
#include "kernels/matmul_codes.h"

namespace weft::ISA {

// A panel as laid out: four outputs after four outputs, and of these block by block codes [column / 4][4 outputs][4], then
// per output d, m or dmin, and for types with sub-blocks int32 scales and int16 minima of each.
template <DType type>
struct Laid {
  static constexpr Format f = format_of(type);
  static constexpr int64_t d_at = f.block * 4, m_at = d_at + 16, scales_at = m_at + (f.mins ? 16 : 0);
  static constexpr int64_t mins_at = scales_at + f.subs * 16, bytes = mins_at + (f.mins ? f.subs * 8 : 0);
};

template <DType type>
static void lay_panel(const std::byte* codes, const std::byte* heads, int64_t blocks, std::byte* to) {
  constexpr Format f = format_of(type);
  using L = Laid<type>;
  const auto put = [&](int i, int64_t at, auto vector) {
    __builtin_memcpy(to + i * blocks * L::bytes + at, &vector, sizeof vector);
  };
  for (int64_t b = 0; b < blocks; ++b, heads += f.head_bytes(), to += L::bytes) {
    for (int chunk = 0; chunk < f.chunks(); ++chunk, codes += f.chunk_bytes()) {
      u8x64 groups[8];
      unpack<type>(codes, groups);
      const uint8x16_t offset = vdupq_n_u8(static_cast<uint8_t>(f.offset));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) put(i, (chunk * 8 + g) * 16, vsubq_u8(groups[g].v[i], offset));
    }
    const f32x16 d = half_row(heads, 0), m = f.mins ? half_row(heads, 1) : zero();
    for (int i = 0; i < 4; ++i) put(i, L::d_at, d.v[i]);
    for (int i = 0; f.mins && i < 4; ++i) put(i, L::m_at, m.v[i]);
    for (int j = 0; j < f.subs; ++j) {
      const pairs scale = scale_pairs<type>(heads, j / 2);
      const i32x16 own = j % 2 ? odd(scale) : even(scale);
      for (int i = 0; i < 4; ++i) put(i, L::scales_at + j * 16, own.v[i]);
      if constexpr (f.mins) {
        const pairs mins = min_pairs<type>(heads, j / 2);
        const i32x16 min = j % 2 ? odd(mins) : even(mins);
        for (int i = 0; i < 4; ++i) put(i, L::mins_at + j * 8, vmovn_s32(min.v[i]));
      }
    }
  }
}

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

// Sums of 32 products are below 2^22, so they may begin at the bits of 1.5 * 2^23: as a float the sum is then that many
// above it. One subtraction, where a conversion takes four times as long.
constexpr int32_t kFloatBits = 0x4B400000;
template <DType type>
WEFT_INLINE float32x4_t as_float(int32x4_t total) {
  if constexpr (format_of(type).subs) return vcvtq_f32_s32(total);
  return vsubq_f32(vreinterpretq_f32_s32(total), vdupq_n_f32(12582912.0f));
}

// The integers of block `x` of `rows` rows, `blocks` apart, times the four outputs of the block at w.
template <DType type, int rows>
WEFT_INLINE void dot_laid(int32x4_t (&total)[rows], const std::byte* w, const A8<format_of(type).block>* x,
                          int64_t blocks) {
  constexpr Format f = format_of(type);
  const int64_t stride = blocks * static_cast<int64_t>(sizeof *x);
  begin(total, f.subs ? 0 : kFloatBits);
  if constexpr (f.subs == 0) {
    add_sixteen(total, w, x->q, stride);
    add_sixteen(total, w + 64, x->q + 16, stride);
    return;
  }
#pragma GCC unroll 1
  for (int j = 0; j < f.subs; ++j) {
    constexpr int width = f.subs ? f.block / f.subs : 16;
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

// Rows of x, and what matmul_q notes of them.
template <DType type>
struct NotedRows {
  const A8<format_of(type).block>* x;
  const int32_t* notes;
  int64_t blocks, words;  // of a row, of a block's note
  WEFT_INLINE const auto& block(int r, int64_t b) const { return x[r * blocks + b]; }
  WEFT_INLINE const int32_t* note(int r, int64_t b) const { return notes + (r * blocks + b) * words; }
};

// One tile: y of `rows` rows and 16 outputs, of which `columns` are there.
template <DType type, int rows>
static void tile_laid(const NotedRows<type>& s, const std::byte* laid, float* y, int64_t y_stride, int64_t columns) {
  constexpr Format f = format_of(type);
  using L = Laid<type>;
  for (int i = 0; i < 4; ++i) {
    float32x4_t acc[rows];
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) acc[r] = vdupq_n_f32(0);
    const std::byte* w = laid + i * s.blocks * L::bytes;
    for (int64_t b = 0; b < s.blocks; ++b, w += L::bytes) {
      int32x4_t total[rows];
      dot_laid<type>(total, w, &s.block(0, b), s.blocks);
      const float32x4_t d = vld1q_f32(reinterpret_cast<const float*>(w + L::d_at));
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r)
        acc[r] = vfmaq_f32(acc[r], vmulq_n_f32(d, s.block(r, b).d), as_float<type>(total[r]));
      if constexpr (f.mins) {
        const float32x4_t m = vld1q_f32(reinterpret_cast<const float*>(w + L::m_at));
        if constexpr (f.subs == 0) {
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r) {
            float shift;
            std::memcpy(&shift, s.note(r, b), 4);
            acc[r] = vfmaq_n_f32(acc[r], m, shift);
          }
        } else {
          const float32x4_t minus = vsubq_f32(vdupq_n_f32(0), m);
          dot_mins<type>(total, w, [&](int r) {
            return f.subs == 16 ? s.block(r, b).sum : reinterpret_cast<const int16_t*>(s.note(r, b));
          });
#pragma GCC unroll 8
          for (int r = 0; r < rows; ++r)
            acc[r] = vfmaq_f32(acc[r], vmulq_n_f32(minus, s.block(r, b).d), vcvtq_f32_s32(total[r]));
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) store4_n(y + r * y_stride + 4 * i, acc[r], columns - 4 * i);
  }
}

// Any number of rows.
template <DType type, int rows = 8>
static void rows_laid(NotedRows<type> s, int64_t count, const std::byte* laid, float* y, int64_t y_stride, int64_t columns) {
  for (; count >= rows; count -= rows, y += rows * y_stride) {
    tile_laid<type, rows>(s, laid, y, y_stride, columns);
    s.x += rows * s.blocks;
    s.notes += rows * s.blocks * s.words;
  }
  if constexpr (rows > 1) rows_laid<type, rows / 2>(s, count, laid, y, y_stride, columns);
}

}  // namespace weft::ISA
