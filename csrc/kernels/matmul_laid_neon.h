// matmul_laid_neon: matmul_q of many rows with sdot. A panel of W is laid out once for all rows of a task: codes as
// signed bytes without their offset, scales as numbers that need no conversion. neon/rows_laid.cpp multiplies.
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
static void lay_panel(const std::byte* codes, const std::byte* headers, int64_t blocks, std::byte* to) {
  constexpr Format f = format_of(type);
  using L = Laid<type>;
  const auto put = [&](int i, int64_t at, auto vector) {
    __builtin_memcpy(to + i * blocks * L::bytes + at, &vector, sizeof vector);
  };
  for (int64_t b = 0; b < blocks; ++b, headers += f.header_bytes(), to += L::bytes) {
    for (int chunk = 0; chunk < f.chunks(); ++chunk, codes += f.chunk_bytes()) {
      u8x64 groups[8];
      unpack<type, has_levels<type>()>(codes, groups);
      const uint8x16_t offset = vdupq_n_u8(has_levels<type>() ? 0 : static_cast<uint8_t>(f.offset));
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g)
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) put(i, (chunk * 8 + g) * 16, vsubq_u8(groups[g].v[i], offset));
    }
    const f32x16 d = half_row<type>(headers, 0), m = f.mins ? half_row<type>(headers, 1) : zero();
    for (int i = 0; i < 4; ++i) put(i, L::d_at, d.v[i]);
    for (int i = 0; f.mins && i < 4; ++i) put(i, L::m_at, m.v[i]);
    for (int j = 0; j < f.subs; ++j) {
      const pairs scale = scale_pairs<type>(headers, j / 2);
      const i32x16 own = j % 2 ? odd(scale) : even(scale);
      for (int i = 0; i < 4; ++i) put(i, L::scales_at + j * 16, own.v[i]);
      if constexpr (f.mins) {
        const pairs mins = min_pairs<type>(headers, j / 2);
        const i32x16 min = j % 2 ? odd(mins) : even(mins);
        for (int i = 0; i < 4; ++i) put(i, L::mins_at + j * 8, vmovn_s32(min.v[i]));
      }
    }
  }
}

// Rows of x and matmul_q's notes about them.
template <DType type>
struct NotedRows {
  const A8<format_of(type).block>* x;
  const int32_t* notes;
  int64_t blocks, words;  // of a row, of a block's note
  WEFT_INLINE const auto& block(int r, int64_t b) const { return x[r * blocks + b]; }
  WEFT_INLINE const int32_t* note(int r, int64_t b) const { return notes + (r * blocks + b) * words; }
};

// y of `count` rows and the 16 outputs of a laid panel, of which `columns` exist.
template <DType type>
void rows_laid(NotedRows<type> s, int64_t count, const std::byte* laid, float* y, int64_t y_stride, int64_t columns);

}  // namespace weft::ISA
