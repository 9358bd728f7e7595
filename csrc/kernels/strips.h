// strips: products of plain matrices, for training: C[i][j] += sum over d of A[i][d] B[d][j], B row after row. Every
// element is one chain over d, in order, whatever the tile: neither the team nor other rows change a bit.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

// A tile of C stays in registers: this many rows, and vectors of 16 columns.
#if defined(WEFT_ISA_avx512)
constexpr int kStripRows = 6, kStripVectors = 4;
#else
constexpr int kStripRows = 5, kStripVectors = 1;
#endif
constexpr int64_t kStripDepth = 128;  // rows of B at a time: 32 kB of it for 64 columns

// A as it is read: element (i, d) is at data[i * row + d * step], so that a transposed matrix needs no copy.
struct Left {
  const float* data;
  int64_t row, step;
  WEFT_INLINE Left from(int64_t i, int64_t d) const { return {data + i * row + d * step, row, step}; }
};

#if defined(WEFT_ISA_neon)
// One step of d, whose elements of A are lane `lane` of each row's four. A splat would take a turn of the unit that
// multiplies; this reads the lane on its way.
template <int lane, int R>
WEFT_INLINE void add_step(f32x16 (&acc)[R][1], const float32x4_t (&left)[R], f32x16 right) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r][0] = fma_lane<lane>(left[r], right, acc[r][0]);
}
#endif

// `last`: columns of the last vector
template <int R, int V>
WEFT_INLINE void strip(float* c, int64_t c_row, Left a, const float* b, int64_t b_row, int64_t depth, int64_t last) {
  f32x16 acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v)
      acc[r][v] = v + 1 < V || last == 16 ? load(c + r * c_row + 16 * v) : load_n(c + r * c_row + 16 * v, last);
  int64_t d = 0;
#if defined(WEFT_ISA_neon)
  for (; a.step == 1 && last == 16 && d + 4 <= depth; d += 4) {
    float32x4_t left[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) left[r] = vld1q_f32(a.data + r * a.row + d);
    const float* from = b + d * b_row;
    add_step<0>(acc, left, load(from));
    add_step<1>(acc, left, load(from + b_row));
    add_step<2>(acc, left, load(from + 2 * b_row));
    add_step<3>(acc, left, load(from + 3 * b_row));
  }
#endif
  for (; d < depth; ++d) {
    f32x16 right[V];
    const float* from = b + d * b_row;
    for (int v = 0; v < V; ++v) right[v] = v + 1 < V || last == 16 ? load(from + 16 * v) : load_n(from + 16 * v, last);
    for (int r = 0; r < R; ++r) {
      const f32x16 left = splat(a.data[r * a.row + d * a.step]);
      for (int v = 0; v < V; ++v) acc[r][v] = fma(left, right[v], acc[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      if (v + 1 < V || last == 16) store(c + r * c_row + 16 * v, acc[r][v]);
      else store_n(c + r * c_row + 16 * v, acc[r][v], last);
    }
}

template <int V, int R = kStripRows>
WEFT_INLINE void strip_of(int64_t rows, float* c, int64_t c_row, Left a, const float* b, int64_t b_row, int64_t depth,
                          int64_t last) {
  if constexpr (R > 0) {
    if (rows == R) return strip<R, V>(c, c_row, a, b, b_row, depth, last);
    strip_of<V, R - 1>(rows, c, c_row, a, b, b_row, depth, last);
  }
}

template <int V>
WEFT_INLINE void strips(float* c, int64_t c_row, int64_t rows, Left a, const float* b, int64_t b_row, int64_t depth,
                        int64_t last) {
  for (int64_t i = 0; i < rows; i += kStripRows)
    strip_of<V>(smaller(kStripRows, rows - i), c + i * c_row, c_row, a.from(i, 0), b, b_row, depth, last);
}

// C [rows, cols] += A [rows, depth] B [depth, cols]. Rows of B that lie far apart share few lines of the cache: where it
// pays they are put together first.
[[maybe_unused]] static void add_product(float* c, int64_t c_row, int64_t rows, int64_t cols, Left a, const float* b,
                                         int64_t b_row, int64_t depth) {
  constexpr int64_t wide = 16 * kStripVectors;
  alignas(64) float together[kStripDepth * wide];
  const bool apart = b_row > 4 * wide && rows >= 4 * kStripRows;
  for (int64_t d = 0; d < depth; d += kStripDepth) {
    const int64_t deep = smaller(kStripDepth, depth - d);
    const float* from = b + d * b_row;
    int64_t j = 0;
    for (; j + wide <= cols; j += wide) {
      if (apart)
        for (int64_t i = 0; i < deep; ++i)
          for (int v = 0; v < kStripVectors; ++v) store(together + i * wide + 16 * v, load(from + i * b_row + j + 16 * v));
      strips<kStripVectors>(c + j, c_row, rows, a.from(0, d), apart ? together : from + j, apart ? wide : b_row, deep, 16);
    }
    for (; j < cols; j += 16) strips<1>(c + j, c_row, rows, a.from(0, d), from + j, b_row, deep, smaller(16, cols - j));
  }
}

constexpr int64_t kStripColumns = 64;  // of a task

// A result cut into tasks of some rows and kStripColumns columns. What a task makes ready of a matrix is the less, the more
// rows it has: as many as leave two tasks for each of the team.
struct Tiling {
  struct Tile {
    int64_t row, rows, col, cols;
  };
  int64_t rows, cols, share, across, tasks;
  WEFT_INLINE Tiling(int64_t rows, int64_t cols, int team) : rows(rows), cols(cols) {
    across = (cols + kStripColumns - 1) / kStripColumns;
    const int64_t parts = team == 1 ? 1 : (2 * team + across - 1) / across;
    share = larger(4 * kStripRows, smaller(384, (rows + parts - 1) / parts));
    tasks = across * ((rows + share - 1) / share);
  }
  WEFT_INLINE Tile at(int64_t task) const {
    const int64_t row = task / across * share, col = task % across * kStripColumns;
    return {row, smaller(share, rows - row), col, smaller(kStripColumns, cols - col)};
  }
};

WEFT_INLINE void clear(float* to, int64_t count) { std::memset(to, 0, static_cast<size_t>(count) * sizeof(float)); }

// How many of `rows` a task takes: enough to be worth reading a matrix for, few enough for all of the team to have some.
WEFT_INLINE int64_t rows_per_task(int64_t rows, int team, int64_t least, int64_t most) {
  return larger(least, smaller(most, (rows + team - 1) / team));
}

}  // namespace weft::ISA
