// lora_parts: what the adapter kernels share: which adapter a row has, products with panels, and applying a part.
#pragma once
#include "core/state.h"
#include "core/weight.h"
#include "kernels/matmul_epilogue.h"
#include "kernels/segments.h"
#include "kernels/widen.h"

namespace weft::ISA {

struct Rows {
  const float* x;
  int64_t stride, depth;
};

// The products of R rows with P panels, each the sum of C chains, chain c over the columns c, c + C, …: done(r, p, sum)
template <int R, int P, int C, class T, class Done>
WEFT_INLINE void tile(const Rows& rows, const T* w, Done done) {
  f32x16 acc[R][P][C];
#pragma GCC unroll 64
  for (int i = 0; i < R * P * C; ++i) acc[i / (P * C)][i / C % P][i % C] = zero();
  const auto step = [&](int64_t k, int c) __attribute__((always_inline)) {
    f32x16 column[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) column[p] = widen(w + (p * rows.depth + k) * 16);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const f32x16 value = splat(rows.x[r * rows.stride + k]);
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) acc[r][p][c] = fma(value, column[p], acc[r][p][c]);
    }
  };
  int64_t k = 0;
  for (; k + C <= rows.depth; k += C)
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) step(k + c, c);
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c)
    if (k + c < rows.depth) step(k + c, c);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      if constexpr (C == 4) done(r, p, (acc[r][p][0] + acc[r][p][1]) + (acc[r][p][2] + acc[r][p][3]));
      else done(r, p, acc[r][p][0]);
    }
}

// Applies an adapter to 16 columns of a row.
struct Finish {
  const AdapterPart& part;
  const float* y;
  float* out;
  int64_t columns;

  WEFT_INLINE void operator()(int64_t row, int64_t panel, f32x16 sum) const {
    const int64_t at = panel * 16, n = smaller(16, columns - at);
    f32x16 value = part.up && !part.down ? sum : load_n(y + row * columns + at, n) + sum;
    if (part.gain) value = value * load_n(part.gain + at, n);
    if (part.shift) value = value + load_n(part.shift + at, n);
    store_n(out + row * columns + at, value, n);
  }
};

// The adapters of rows: row r of y belongs to token rows[r], or to token r where rows is absent.
struct Owners {
  const Operand &segments, &adapters;
  const Operand rows;

  WEFT_INLINE int32_t operator()(int64_t row) const {
    const int64_t token = rows.present() ? rows.as<int32_t>()[row] : row;
    const int32_t index = adapters.as<int32_t>()[segment_of(segments.as<int32_t>(), adapters.dim[0], token)];
    return index > 0 && index < kAdapters ? index : 0;
  }
};

// Columns [begin, end) of a row that no adapter changes.
WEFT_INLINE void keep_row(const Operand& y, const Operand& out, int64_t row, int64_t begin, int64_t end) {
  if (out.data == y.data) return;
  std::memcpy(out.as<float>() + row * y.cols() + begin, y.as<float>() + row * y.cols() + begin,
              static_cast<size_t>(end - begin) * sizeof(float));
}

}  // namespace weft::ISA
