// matmul_parts: products in the matrix unit of numbers that are sums of bfloat16 parts (decision 0062).
//
// Three parts of eight bits are all of a float32: x = x1 + x2 + x3. Of the nine products of parts, six are larger than what
// float32 rounds away: x1 w1, x1 w2, x2 w1, x2 w2, x1 w3 and x3 w1. A float16 has two parts and a bfloat16 one, which leaves
// five and three. Products of parts are exact in float32, and there are fewer roundings than in a chain of fused
// multiply-adds: results are closer to the exact ones than those of matmul.
// Blocks of 384 columns, each summed from zero: y = y + block. In a block, for every 32 columns, the products of parts in the
// order of kPath; for each one, two chains over the even and the odd columns are added up and then added to the block: one
// instruction of the matrix unit. Subnormal numbers count as zero everywhere.
// Two panels of a block are split into tiles in scratch by the vector units, while the matrix unit multiplies the two before
// them by all rows of the task.
#pragma once
#include <algorithm>

#include "core/weight.h"
#include "kernels/matmul_epilogue.h"
#include "kernels/widen.h"
#include "simd/tiles.h"

namespace weft::ISA {

constexpr int64_t kStep = 32, kPairs = 16;  // columns of an instruction, and pairs of them
constexpr int64_t kBlockColumns = 384, kBlockSteps = kBlockColumns / kStep;
constexpr int64_t kTile = 1024, kTileRows = 16;  // bytes and rows
constexpr int64_t kXParts = 3;
// Products of tiles with few rows take less time.
static void shape_tiles_for(int64_t height) {
  TileShapes shapes;
  for (int i = 0; i < 8; ++i) shapes.bytes[i] = 64, shapes.rows[i] = i < 6 ? static_cast<uint8_t>(height) : 16;
  _tile_loadconfig(&shapes);
}

// Which part of x is multiplied by which of W, the largest product last. From one to the next only one operand changes.
struct PartPair {
  int64_t x, w;
};
constexpr PartPair kPath[] = {{0, 2}, {0, 1}, {1, 1}, {1, 0}, {2, 0}, {0, 0}};

// The scratch: sums of two blocks of 32 x 32, two panels of W twice, and the rows of x.
constexpr int64_t kSums = 4 * kTile / 4;  // numbers
constexpr int64_t kPanelBytes = kBlockSteps * 3 * kTile, kRowsBytes = kBlockSteps * kXParts * kTile;
constexpr int64_t kPanelsAt = 2 * kSums * 4, kRowsAt = kPanelsAt + 4 * kPanelBytes;
constexpr int64_t kMostRows = (static_cast<int64_t>(kScratchBytes) - kRowsAt) / kRowsBytes / 2 * 2 * kTileRows;

// The first `count` parts of v, in the upper halves of floats: the first 8 bits, the next 8, and what is left. Bits are cut
// off, not rounded: the parts are exact either way, and no value overflows.
template <int64_t count>
WEFT_INLINE void split_parts(f32x16 v, __m512i (&part)[count]) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
#pragma GCC unroll 3
  for (int64_t i = 0; i + 1 < count; ++i) {
    part[i] = _mm512_and_si512(_mm512_castps_si512(v.v), high);
    v = v - f32x16{_mm512_castsi512_ps(part[i])};
  }
  part[count - 1] = _mm512_castps_si512(v.v);
}

// The upper halves of 16 floats and 16 others: one after another, or in turn.
enum class Order { apart, paired };
template <Order order>
WEFT_INLINE __m512i upper_halves(__m512i a, __m512i b) {
  alignas(64) static constexpr uint16_t kApart[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  if constexpr (order == Order::apart) return _mm512_permutex2var_epi16(a, _mm512_load_si512(kApart), b);
  constexpr int kChosen = 0xB8;  // bits of a where the mask has none, else of b
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(a, 16), _mm512_set1_epi32(static_cast<int>(0xFFFF0000)), b, kChosen);
}

// The parts of both to tiles that lie one after another.
template <int64_t count, Order order>
WEFT_INLINE void store_parts(f32x16 a, f32x16 b, std::byte* out) {
  __m512i first[count], second[count];
  split_parts(a, first), split_parts(b, second);
#pragma GCC unroll 3
  for (int64_t i = 0; i < count; ++i) _mm512_store_si512(out + i * kTile, upper_halves<order>(first[i], second[i]));
}

// Rows of x as tiles [step][part][16][32] of which `height` rows are read; those and columns that do not exist are zero.
[[maybe_unused]] static void lay_rows(const float* x, int64_t stride, int64_t rows, int64_t columns, int64_t height, std::byte* out) {
  for (int64_t r = 0; r < height; ++r, x += stride, out += 64)
    for (int64_t k = 0; k < columns; k += kStep) {
      const int64_t count = r < rows ? columns - k : 0;
      const f32x16 first = count ? load_n(x + k, count) : zero(), second = count > 16 ? load_n(x + k + 16, count - 16) : zero();
      store_parts<kXParts, Order::apart>(first, second, out + k / kStep * kXParts * kTile);
      for (int64_t i : {0, 16}) _mm_prefetch(reinterpret_cast<const char*>(x + 4 * stride + k + i), _MM_HINT_T0);
    }
}

// Two panels of a block of W on their way to tiles [panel][step][part][16 pairs][16 outputs][2], some pairs of columns at a
// time. `W::lay` writes `turn` pairs of a panel, from column k on, of which there are `left` more; the others are zero.
template <class W>
struct Laying {
  const W* from = nullptr;
  std::byte* to = nullptr;            // the panel's tiles
  int64_t panel = 0, panels = 0;      // the next, and how many are left
  int64_t k = 0, columns = 0, pairs = 0;  // of the block; pairs with padding
  int64_t done = 0;                   // pairs of this panel

  __attribute__((noinline)) void some(int64_t count) {
    while (count > 0 && panels) {
      const int64_t in_step = done % kPairs, turn = W::kWholeSteps ? kPairs : smaller(count, kPairs - in_step);
      from->lay(panel, k + 2 * done, columns - 2 * done, turn, to + done / kPairs * W::kParts * kTile + in_step * 64);
      done += turn, count -= turn;
      if (done == pairs) done = 0, ++panel, --panels, to += kPanelBytes;
    }
  }
};

// Sums of up to 32 rows and 32 columns on their way to y.
struct Finishing {
  const float* sums = nullptr;  // [row / 16][panel][16][16]
  float* y = nullptr;
  int64_t stride = 0, columns = 0;  // of y; of these sums
  int64_t rows = 0, done = 0;
  const float* bias = nullptr;  // of these columns; null: none
  bool first = false;           // the first block of columns of W

  template <Activation kind>
  static void some(Finishing& f, int64_t count) {
    const Finishing at = f;
    f.done = smaller(at.rows, at.done + count);
    for (int64_t r = at.done; r < f.done; ++r)
      for (int64_t c = 0; c < at.columns; c += 16) {
        const int64_t there = at.columns - c;
        float* y = at.y + r * at.stride + c;
        f32x16 v = load(at.sums + (r / 16 * 2 + c / 16) * 256 + r % 16 * 16);
        if (!at.first) v = load_n(y, there) + v;
        if (at.bias) v = v + load_n(at.bias + c, there);
        store_n(y, activate<kind>(v), there);
      }
  }
};
using Finish = void (*)(Finishing&, int64_t);

// Sums of 16 R rows and 32 columns over a block: tmm0 to tmm3; tmm4 and tmm5 hold rows of x, tmm6 and tmm7 panels of W.
// `w_at` says where a step's tiles are; `beside` is called after every step, and what it does overlaps with the products.
template <int R, int64_t w_parts, class At, class Beside>
WEFT_INLINE void multiply_block(const std::byte* x, int64_t steps, float* sums, At w_at, Beside beside) {
  const std::byte* x1 = x + steps * kXParts * kTile;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1) _tile_zero(3);
  for (int64_t i = 0; i < steps; ++i, x += kXParts * kTile, x1 += kXParts * kTile) {
    const std::byte* w = w_at(i);
    PartPair loaded{-1, -1};
#pragma GCC unroll 6
    for (const PartPair& pair : kPath) {
      if (pair.w >= w_parts) continue;
      if (pair.x != loaded.x) _tile_loadd(4, x + pair.x * kTile, 64);
      if constexpr (R > 1)
        if (pair.x != loaded.x) _tile_loadd(5, x1 + pair.x * kTile, 64);
      if (pair.w != loaded.w) _tile_loadd(6, w + pair.w * kTile, 64);
      if (pair.w != loaded.w) _tile_loadd(7, w + kPanelBytes + pair.w * kTile, 64);
      loaded = pair;
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
      if constexpr (R > 1) _tile_dpbf16ps(3, 5, 7);
    }
    beside();
  }
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + 256, 64);
  if constexpr (R > 1) _tile_stored(2, sums + 512, 64);
  if constexpr (R > 1) _tile_stored(3, sums + 768, 64);
}

// Rows of x [., depth] times W [columns, depth].
template <class W>
struct PartsProduct {
  const float* x;
  W w;
  float* y;
  int64_t depth, columns, height;  // height: rows of a tile
  Epilogue epilogue;

  WEFT_INLINE bool last(int64_t k) const { return k + kBlockColumns >= depth; }
  WEFT_INLINE int64_t block_columns(int64_t k) const { return smaller(kBlockColumns, depth - k); }
  WEFT_INLINE int64_t steps(int64_t k) const { return parts(block_columns(k), kStep); }
};

// The step of W that is laid next where there is one block of rows: its block, the panel among those of the task, the
// step in the block, and the number of steps before.
struct LaidStep {
  int64_t k = 0, panel = 0, step = 0, turn = 0;
};

// A task: blocks of columns; in each of them its panels by twos, and for these all rows.
template <class W>
struct PartsTask {
  const PartsProduct<W>& a;
  const Piece& piece;
  std::byte* scratch;
  int64_t tiles = parts(piece.row_end - piece.row, kTileRows);
  int64_t panels_done = 0, sums_done = 0;  // twos of panels, blocks of sums
  Laying<W> laying = {};
  Finishing finishing = {};
  LaidStep ahead = {};
  int64_t steps_done = 0;
  Finish finish = &Finishing::some<Activation::none>, finish_last = finish;

  void multiply_all() {
    with_activation(a.epilogue.activation, [&](auto kind) { finish_last = &Finishing::some<kind()>; });
    const bool few = tiles <= 2;
    if (few) lay_step(), lay_step();
    else lay_panels(0, piece.panel);
    for (int64_t k = 0; k < a.depth; k += kBlockColumns) {
      for (int64_t t = 0; t < tiles; ++t) {
        const int64_t row = piece.row + t * kTileRows;
        lay_rows(a.x + row * a.depth + k, a.depth, smaller(kTileRows, piece.row_end - row), a.block_columns(k), a.height,
                 rows_at(t, k));
      }
      for (int64_t panel = piece.panel; panel < piece.panel_end; panel += 2) few ? multiply_few(k, panel) : multiply_panels(k, panel);
    }
    finish(finishing, finishing.rows);
  }

  std::byte* rows_at(int64_t tile, int64_t k) const { return scratch + kRowsAt + tile * a.steps(k) * kXParts * kTile; }
  std::byte* panels_at(int64_t turn) const { return scratch + kPanelsAt + turn % 2 * 2 * kPanelBytes; }

  void lay_panels(int64_t k, int64_t panel) {
    laying = {&a.w, panels_at(panels_done), panel, smaller(2, piece.panel_end - panel), k, a.block_columns(k), a.steps(k) * kPairs};
  }

  void multiply_panels(int64_t k, int64_t panel) {
    laying.some(2 * kBlockSteps * kPairs);  // what is left of these
    settle_stores();
    const std::byte* w = panels_at(panels_done++);
    if (panel + 2 < piece.panel_end) lay_panels(k, panel + 2);
    else if (!a.last(k)) lay_panels(k + kBlockColumns, piece.panel);
    const int64_t steps = a.steps(k), share = parts(laying.panels * laying.pairs, parts(tiles, 2) * steps);
    for (int64_t t = 0; t < tiles; t += 2) {
      float* sums = reinterpret_cast<float*>(scratch) + sums_done++ % 2 * kSums;
      const int64_t rows_each = parts(finishing.rows, steps);
      const auto beside = [&] {
        finish(finishing, rows_each);
        laying.some(share);
      };
      const auto w_at = [&](int64_t i) { return w + i * W::kParts * kTile; };
      if (t + 1 < tiles) multiply_block<2, W::kParts>(rows_at(t, k), steps, sums, w_at, beside);
      else multiply_block<1, W::kParts>(rows_at(t, k), steps, sums, w_at, beside);
      finish_later(sums, k, piece.row + t * kTileRows, panel * 16);
    }
  }

  // With one block of rows every step of W is used once: it is laid two steps ahead, and stays in the first-level cache.

  std::byte* slot(int64_t turn) const { return scratch + kPanelsAt + turn % 4 * W::kParts * kTile; }

  void lay_step() {
    if (ahead.k >= a.depth) return;
    const int64_t panel = piece.panel + ahead.panel, k = ahead.k + ahead.step * kStep;
    Laying<W>{&a.w, slot(ahead.turn++), panel, smaller(2, piece.panel_end - panel), k, smaller(kStep, a.depth - k), kPairs}
        .some(2 * kPairs);
    if (++ahead.step < a.steps(ahead.k)) return;
    ahead.step = 0, ahead.panel += 2;
    if (piece.panel + ahead.panel >= piece.panel_end) ahead.panel = 0, ahead.k += kBlockColumns;
  }

  void multiply_few(int64_t k, int64_t panel) {
    const int64_t steps = a.steps(k), rows_each = parts(finishing.rows, steps);
    float* sums = reinterpret_cast<float*>(scratch) + sums_done++ % 2 * kSums;
    const auto w_at = [&](int64_t) {
      settle_stores();
      return slot(steps_done++);
    };
    const auto beside = [&] {
      finish(finishing, rows_each);
      lay_step();
    };
    if (tiles > 1) multiply_block<2, W::kParts>(rows_at(0, k), steps, sums, w_at, beside);
    else multiply_block<1, W::kParts>(rows_at(0, k), steps, sums, w_at, beside);
    finish_later(sums, k, piece.row, panel * 16);
  }

  void finish_later(const float* sums, int64_t k, int64_t row, int64_t column) {
    finishing.sums = sums;
    finishing.y = a.y + row * a.columns + column, finishing.stride = a.columns;
    finishing.columns = smaller(smaller(32, piece.panel_end * 16 - column), a.columns - column);
    finishing.rows = smaller(2 * kTileRows, piece.row_end - row), finishing.done = 0;
    finishing.bias = a.last(k) && a.epilogue.bias ? a.epilogue.bias + column : nullptr;
    finishing.first = k == 0;
    finish = a.last(k) ? finish_last : &Finishing::some<Activation::none>;
  }
};

// The pieces of a product of `rows`, as many as are worth splitting the rows anew for the team.
[[maybe_unused]] static Pieces pieces_for(int64_t rows, int64_t outputs, const int32_t* starts, int64_t matrices,
                                          const Worker& worker) {
  constexpr int64_t kAll = 1 << 20;  // panels: as many as there are
  const int64_t worth = rows > 2 * kTileRows ? 16 : 4;
  return {rows, outputs, starts, matrices, 2 * kTileRows, kMostRows, kAll, worker.count > 1 ? worth : kAll, worker.count};
}

// Products of all pieces that the worker draws: `product_of` makes that of a piece.
template <class Of>
static void multiply_pieces(const Pieces& pieces, const Worker& worker, Of product_of) {
  const int64_t height = std::clamp<int64_t>(pieces.tasks.rows, 1, kTileRows);
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // vectors treat subnormal numbers as the matrix unit does
  shape_tiles_for(height);
  for (int64_t task; (task = worker.next(pieces.count())) < pieces.count();) {
    const Piece piece = pieces.at(task);
    if (piece.row == piece.row_end) continue;
    const auto product = product_of(piece, height);
    PartsTask{product, piece, worker.scratch}.multiply_all();
  }
  _mm_setcsr(before);
}

}  // namespace weft::ISA
