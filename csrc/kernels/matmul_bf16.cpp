// matmul_bf16: y = act(x Wᵀ + b) with x and W in bfloat16 and float32 sums.
//
// Meaning  weft/ops/matmul.py
// Layout   x bfloat16 [M, K], K a multiple of 32; y float32 or bfloat16 [M, N]; W bfloat16 in pairs (pack/pairs.h).
//          Split: x, W and a bfloat16 y have twice the columns, rounded values and then what the rounding left
// Method   per 32 columns two chains, over the even and over the odd ones, are added up and then added to the element.
//          Products of bfloat16 are exact in float32, so this is what an instruction of the matrix unit does, and every
//          level gives the same bits (subnormal sums apart, which the unit makes zero). Split: per 32 columns three
//          products, value and value, value and rest, rest and value: 16 bits of every factor count
// Bound    the matrix unit and the second-level cache, or fma throughput; memory, one pass over W, with few rows
#include "core/weight.h"
#include "kernels/matmul_epilogue.h"
#include "kernels/round_bf16.h"
#include "pack/pairs.h"
#if defined(WEFT_ISA_amx)
#include "simd/tiles.h"
#endif

namespace weft::ISA {

constexpr int64_t kMaxPanels = 1 << 20;  // as many as there are
constexpr int64_t kMaxDepth = 1 << 14;   // whatever the level keeps in scratch of a task fits

struct Product {
  const uint16_t *x, *w;
  float* y;  // or, where the result is to be rounded, null
  uint16_t* narrow_y;
  int64_t depth, columns;  // K, N
  bool split;
  WEFT_INLINE int64_t x_row() const { return split ? 2 * depth : depth; }  // elements, of W too
  WEFT_INLINE int64_t narrow_row() const { return split ? 2 * columns : columns; }
};

// The sums of 16 outputs from `column` on, finished and stored; of the last ones only `count` are there.
WEFT_INLINE void put(const Product& a, const Epilogue& epilogue, int64_t row, int64_t column, f32x16 sums) {
  const int64_t count = smaller(16, a.columns - column);
  const f32x16 result = a.split ? finished(epilogue, sums, column, count) : finished_coarse(epilogue, sums, column, count);
  if (a.y) return store_n(a.y + row * a.columns + column, result, count);
  uint16_t* to = a.narrow_y + row * a.narrow_row() + column;
  if (a.split) store_split(to, to + a.columns, result, count);
  else store_rounded_n(to, result, count);
}

#if defined(WEFT_ISA_amx)

constexpr int64_t kTaskRows = 32;
constexpr int64_t max_rows(int64_t) { return 256; }  // of a task
constexpr int64_t kBlock = 1024;  // sums of 32 rows and 2 panels
constexpr int64_t kGroupBytes = 512 << 10;

// Sums that wait for bias and activation: `rows` rows and `panels` panels as [2][panels][16][16].
struct Pending {
  const float* sums = nullptr;
  int64_t row = 0, rows = 0, panel = 0, panels = 0, done = 0;
};

// Finishes up to `count` rows more.
using Finish = void (*)(const Product& a, const Epilogue& epilogue, Pending& pending, int64_t count);

static void finish_some(const Product& a, const Epilogue& epilogue, Pending& pending, int64_t count) {
  for (const int64_t end = smaller(pending.rows, pending.done + count); pending.done < end; ++pending.done) {
    const int64_t r = pending.done;
    for (int64_t p = 0; p < pending.panels; ++p)
      put(a, epilogue, pending.row + r, (pending.panel + p) * 16,
          load(pending.sums + (r / 16 * pending.panels + p) * 256 + r % 16 * 16));
  }
}

WEFT_INLINE void store_rounded_pair(uint16_t* to, f32x16 first, f32x16 second) {
  const __m512bh both = _mm512_cvtne2ps_pbh(second.v, first.v);
  _mm512_storeu_si512(to, reinterpret_cast<const __m512i&>(both));
}

// The same for whole panels, two at a time, with a known activation and type of result.
template <Activation kind, bool narrow, bool split>
static void finish_whole(const Product& a, const Epilogue& epilogue, Pending& pending, int64_t count) {
  const int64_t column = pending.panel * 16;
  if (pending.panels < 2 || column + 32 > a.columns) return finish_some(a, epilogue, pending, count);
  f32x16 bias[2] = {zero(), zero()};
  if (epilogue.bias) bias[0] = load(epilogue.bias + column), bias[1] = load(epilogue.bias + column + 16);
  for (const int64_t end = smaller(pending.rows, pending.done + count); pending.done < end; ++pending.done) {
    const float* sums = pending.sums + pending.done / 16 * 512 + pending.done % 16 * 16;
    const int64_t row = pending.row + pending.done;
    f32x16 first = load(sums) + bias[0], second = load(sums + 256) + bias[1];
    first = split ? activate<kind>(first) : activate_coarse<kind>(first);
    second = split ? activate<kind>(second) : activate_coarse<kind>(second);
    if constexpr (!narrow) {
      store(a.y + row * a.columns + column, first);
      store(a.y + row * a.columns + column + 16, second);
      continue;
    }
    uint16_t* to = a.narrow_y + row * a.narrow_row() + column;
    store_rounded_pair(to, first, second);
    if constexpr (split) store_rounded_pair(to + a.columns, first - load_bf16(to), second - load_bf16(to + 16));
  }
}

static Finish finish_for(const Product& a, const Epilogue& epilogue) {
  Finish chosen = finish_some;
  with_activation(epilogue.activation, [&](auto kind) {
    if (a.split) chosen = a.y ? finish_whole<kind(), false, true> : finish_whole<kind(), true, true>;
    else chosen = a.y ? finish_whole<kind(), false, false> : finish_whole<kind(), true, false>;
  });
  return chosen;
}

// Sums of 16 R rows and 16 P columns: tmm0 to tmm3; tmm4 and tmm5 hold rows of x, tmm6 and tmm7 panels of W. While the
// matrix unit multiplies, the vector units finish the block before.
template <int R, int P, bool split>
static void multiply(const Product& a, const Epilogue& epilogue, Finish finish, const uint16_t* x, const uint16_t* w,
                     float* sums, Pending& before) {
  const int64_t depth = a.depth, row = a.x_row(), stride = row * 2, share = parts(32, depth / kPairColumns);
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kPairColumns) {
    for (int turn = split ? 3 : 1; turn > 0; --turn) {  // 3: values; 2: rests of W; 1: rests of x, or all there is
      const int64_t in_x = split && turn == 1 ? depth + k : k, in_w = split && turn == 2 ? depth + k : k;
      if (turn != 2) _tile_loadd(4, x + in_x, stride);
      _tile_loadd(6, w + in_w * 16, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (P > 1) _tile_loadd(7, w + (row + in_w) * 16, 64);
      if constexpr (P > 1) _tile_dpbf16ps(1, 4, 7);
      if constexpr (R > 1)
        if (turn != 2) _tile_loadd(5, x + 16 * row + in_x, stride);
      if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
      if constexpr (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
    }
    finish(a, epilogue, before, share);
  }
  _tile_stored(0, sums, 64);
  if constexpr (P > 1) _tile_stored(1, sums + 256, 64);
  if constexpr (R > 1) _tile_stored(2, sums + P * 256, 64);
  if constexpr (R > 1 && P > 1) _tile_stored(3, sums + 3 * 256, 64);
}

// Rows [row, row_end) times panels [panel, panel_end), in blocks of up to 32 rows and 2 panels: rows of x stay in the
// first-level cache while a group of panels goes by that stays in the second for the next rows. The last rows, if they
// fill no tile, are copied to scratch first, with zeros after them.
template <bool split>
static void multiply_task(const Product& a, const Epilogue& epilogue, int64_t row, int64_t row_end, int64_t panel,
                          int64_t panel_end, std::byte* scratch) {
  float* sums = reinterpret_cast<float*>(scratch);
  auto* last_rows = reinterpret_cast<uint16_t*>(scratch + 2 * kBlock * sizeof(float));
  const int64_t whole_end = row + (row_end - row) / 16 * 16, x_row = a.x_row();
  __builtin_memcpy(last_rows, a.x + whole_end * x_row, static_cast<size_t>((row_end - whole_end) * x_row) * 2);
  for (int64_t i = (row_end - whole_end) * x_row; i < 16 * x_row; ++i) last_rows[i] = 0;

  const Finish finish = finish_for(a, epilogue);
  Pending pending;
  int64_t turn = 0;
  const int64_t group = larger(2, kGroupBytes / (32 * x_row) / 2 * 2);
  for (; panel < panel_end; panel += group)
    for (int64_t r = row, step; r < row_end; r += step) {
      const uint16_t* x = r < whole_end ? a.x + r * x_row : last_rows;
      step = r + 32 <= whole_end ? 32 : 16;
      for (int64_t p = panel; p < smaller(panel + group, panel_end); p += 2, ++turn) {
        float* to = sums + turn % 2 * kBlock;
        const uint16_t* w = a.w + p * 16 * x_row;
        const int64_t panels = smaller(2, panel_end - p);
        if (step == 32 && panels == 2) multiply<2, 2, split>(a, epilogue, finish, x, w, to, pending);
        else if (step == 32) multiply<2, 1, split>(a, epilogue, finish, x, w, to, pending);
        else if (panels == 2) multiply<1, 2, split>(a, epilogue, finish, x, w, to, pending);
        else multiply<1, 1, split>(a, epilogue, finish, x, w, to, pending);
        pending = {to, r, smaller(step, row_end - r), p, panels, 0};
      }
    }
  finish(a, epilogue, pending, 32);
}

#else

#if defined(WEFT_ISA_avx512)
constexpr int kRows = 4;
#elif defined(WEFT_ISA_avx2)
constexpr int kRows = 2;
#else
constexpr int kRows = 1;
#endif
constexpr int64_t kTaskRows = kRows;
WEFT_INLINE int64_t max_rows(int64_t x_row) { return smaller(64, int64_t{kScratchBytes} / (x_row * 4) / kRows * kRows); }

WEFT_INLINE void shape_whole_tiles() {}

template <int R, int P>
WEFT_INLINE void add_step(const float* x, const uint16_t* w, int64_t x_row, f32x16 (&acc)[R][P]) {
  f32x16 even[R][P], odd[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) even[r][p] = zero(), odd[r][p] = zero();
  for (int64_t k = 0; k < kPairColumns; k += 2) {
    f32x16 first[P], second[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) load_bf16_pairs(w + (p * x_row + k) * 16, first[p], second[p]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        even[r][p] = fma(splat(x[r * x_row + k]), first[p], even[r][p]);
        odd[r][p] = fma(splat(x[r * x_row + k + 1]), second[p], odd[r][p]);
      }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = acc[r][p] + (even[r][p] + odd[r][p]);
}

template <int R, int P>
static void tile(const Product& a, const Epilogue& epilogue, const float* x, int64_t row, int64_t panel) {
  f32x16 acc[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = zero();
  const int64_t x_row = a.x_row();
  const uint16_t* w = a.w + panel * 16 * x_row;
  for (int64_t k = 0; k < a.depth; k += kPairColumns) {
    add_step<R, P>(x + k, w + k * 16, x_row, acc);
    if (!a.split) continue;
    add_step<R, P>(x + k, w + (a.depth + k) * 16, x_row, acc);
    add_step<R, P>(x + a.depth + k, w + k * 16, x_row, acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) put(a, epilogue, row + r, (panel + p) * 16, acc[r][p]);
}

// P panels and rows [row, row_end), the first of which is x.
template <int P, int R = kRows>
static void block(const Product& a, const Epilogue& epilogue, const float* x, int64_t row, int64_t row_end, int64_t panel) {
  for (; row + R <= row_end; row += R, x += R * a.x_row()) tile<R, P>(a, epilogue, x, row, panel);
  if constexpr (R > 1)
    if (row < row_end) block<P, R / 2>(a, epilogue, x, row, row_end, panel);
}

// x is widened to scratch first.
template <bool split>
static void multiply_task(const Product& a, const Epilogue& epilogue, int64_t row, int64_t row_end, int64_t panel,
                          int64_t panel_end, std::byte* scratch) {
  float* x = reinterpret_cast<float*>(scratch);
  const uint16_t* from = a.x + row * a.x_row();
  for (int64_t i = 0; i < (row_end - row) * a.x_row(); i += 16) store(x + i, load_bf16(from + i));
  for (; panel + 2 <= panel_end; panel += 2) block<2>(a, epilogue, x, row, row_end, panel);
  if (panel < panel_end) block<1>(a, epilogue, x, row, row_end, panel);
}

#endif

KERNEL(matmul_bf16) {
  const Weight& weight = *call.in[1].weight;
  if (weight.layout != Layout::pairs) __builtin_trap();  // the binding makes no other for this op
  const bool rounded = call.flag("rounded"), split = call.flag("split");
  const Product a{call.in[0].as<uint16_t>(), reinterpret_cast<const uint16_t*>(weight.data),
                  rounded ? nullptr : call.out[0].as<float>(), rounded ? call.out[0].as<uint16_t>() : nullptr,
                  split ? weight.cols / 2 : weight.cols, weight.rows, split};
  if (a.x_row() > kMaxDepth) __builtin_trap();  // the op's shape rule refuses it
  const Epilogue epilogue(call);
  const Tasks tasks(call.in[0].rows(), parts(a.columns, 16), kTaskRows, max_rows(a.x_row()), kMaxPanels, 4, worker.count);
  shape_whole_tiles();
  const auto multiply_part = split ? multiply_task<true> : multiply_task<false>;
  for (int64_t task; (task = worker.next()) < tasks.count();)
    multiply_part(a, epilogue, tasks.row(task), tasks.row_end(task), tasks.panel(task), tasks.panel_end(task),
                  worker.scratch);
}

}  // namespace weft::ISA
