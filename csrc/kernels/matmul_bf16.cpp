// matmul_bf16: y = act(x Wᵀ + b) with x and W in bfloat16 and float32 sums.
//
// Meaning  weft/ops/matmul.py
// Layout   x bfloat16 [M, K], K a multiple of 32; y float32 or bfloat16 [M, N]; W bfloat16 in pairs (pack/pairs.h)
// Method   per 32 columns two chains, over the even and over the odd ones, are added up and then added to the element.
//          Products of bfloat16 are exact in float32, so this is what an instruction of the matrix unit does, and every
//          level gives the same bits (subnormal sums apart, which the unit makes zero)
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
  float* y;             // or, where the result is to be rounded, null
  uint16_t* narrow_y;
  int64_t depth, columns;  // K, N
};

// The sums of 16 outputs from `column` on, finished and stored; of the last ones only `count` are there.
WEFT_INLINE void put(const Product& a, const Epilogue& epilogue, int64_t row, int64_t column, f32x16 sums) {
  const int64_t count = smaller(16, a.columns - column), at = row * a.columns + column;
  const f32x16 result = finished_coarse(epilogue, sums, column, count);
  if (a.y) return store_n(a.y + at, result, count);
  if (count == 16) return store_rounded(a.narrow_y + at, result);
  alignas(64) uint16_t part[16];
  store_rounded(part, result);
  for (int64_t i = 0; i < count; ++i) a.narrow_y[at + i] = part[i];
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

// The same for whole panels, two at a time, with a known activation and type of result.
template <Activation kind, bool narrow>
static void finish_whole(const Product& a, const Epilogue& epilogue, Pending& pending, int64_t count) {
  const int64_t column = pending.panel * 16;
  if (pending.panels < 2 || column + 32 > a.columns) return finish_some(a, epilogue, pending, count);
  f32x16 bias[2] = {zero(), zero()};
  if (epilogue.bias) bias[0] = load(epilogue.bias + column), bias[1] = load(epilogue.bias + column + 16);
  for (const int64_t end = smaller(pending.rows, pending.done + count); pending.done < end; ++pending.done) {
    const float* sums = pending.sums + pending.done / 16 * 512 + pending.done % 16 * 16;
    const int64_t at = (pending.row + pending.done) * a.columns + column;
    const f32x16 first = activate_coarse<kind>(load(sums) + bias[0]), second = activate_coarse<kind>(load(sums + 256) + bias[1]);
    if constexpr (narrow) {
      const __m512bh both = _mm512_cvtne2ps_pbh(second.v, first.v);
      _mm512_storeu_si512(a.narrow_y + at, reinterpret_cast<const __m512i&>(both));
    } else {
      store(a.y + at, first);
      store(a.y + at + 16, second);
    }
  }
}

static Finish finish_for(const Product& a, const Epilogue& epilogue) {
  Finish chosen = finish_some;
  with_activation(epilogue.activation, [&](auto kind) {
    chosen = a.y ? finish_whole<kind(), false> : finish_whole<kind(), true>;
  });
  return chosen;
}

// Sums of 16 R rows and 16 P columns: tmm0 to tmm3; tmm4 and tmm5 hold rows of x, tmm6 and tmm7 panels of W. While the
// matrix unit multiplies, the vector units finish the block before.
template <int R, int P>
static void multiply(const Product& a, const Epilogue& epilogue, Finish finish, const uint16_t* x, const uint16_t* w,
                     float* sums, Pending& before) {
  const int64_t depth = a.depth, stride = depth * 2, share = parts(32, depth / kPairColumns);
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kPairColumns) {
    _tile_loadd(4, x + k, stride);
    _tile_loadd(6, w + k * 16, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P > 1) _tile_loadd(7, w + (depth + k) * 16, 64);
    if constexpr (P > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) _tile_loadd(5, x + 16 * depth + k, stride);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
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
static void multiply_task(const Product& a, const Epilogue& epilogue, int64_t row, int64_t row_end, int64_t panel,
                          int64_t panel_end, std::byte* scratch) {
  float* sums = reinterpret_cast<float*>(scratch);
  auto* last_rows = reinterpret_cast<uint16_t*>(scratch + 2 * kBlock * sizeof(float));
  const int64_t whole_end = row + (row_end - row) / 16 * 16;
  __builtin_memcpy(last_rows, a.x + whole_end * a.depth, static_cast<size_t>((row_end - whole_end) * a.depth) * 2);
  for (int64_t i = (row_end - whole_end) * a.depth; i < 16 * a.depth; ++i) last_rows[i] = 0;

  const Finish finish = finish_for(a, epilogue);
  Pending pending;
  int64_t turn = 0;
  const int64_t group = larger(2, kGroupBytes / (32 * a.depth) / 2 * 2);
  for (; panel < panel_end; panel += group)
    for (int64_t r = row, step; r < row_end; r += step) {
      const uint16_t* x = r < whole_end ? a.x + r * a.depth : last_rows;
      step = r + 32 <= whole_end ? 32 : 16;
      for (int64_t p = panel; p < smaller(panel + group, panel_end); p += 2, ++turn) {
        float* to = sums + turn % 2 * kBlock;
        const uint16_t* w = a.w + p * 16 * a.depth;
        const int64_t panels = smaller(2, panel_end - p);
        if (step == 32 && panels == 2) multiply<2, 2>(a, epilogue, finish, x, w, to, pending);
        else if (step == 32) multiply<2, 1>(a, epilogue, finish, x, w, to, pending);
        else if (panels == 2) multiply<1, 2>(a, epilogue, finish, x, w, to, pending);
        else multiply<1, 1>(a, epilogue, finish, x, w, to, pending);
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
WEFT_INLINE int64_t max_rows(int64_t depth) { return smaller(64, int64_t{kScratchBytes} / (depth * 4) / kRows * kRows); }

WEFT_INLINE void shape_whole_tiles() {}

template <int R, int P>
WEFT_INLINE void add_step(const float* x, const uint16_t* w, int64_t depth, f32x16 (&acc)[R][P]) {
  f32x16 even[R][P], odd[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) even[r][p] = zero(), odd[r][p] = zero();
  for (int64_t k = 0; k < kPairColumns; k += 2) {
    f32x16 first[P], second[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) load_bf16_pairs(w + (p * depth + k) * 16, first[p], second[p]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        even[r][p] = fma(splat(x[r * depth + k]), first[p], even[r][p]);
        odd[r][p] = fma(splat(x[r * depth + k + 1]), second[p], odd[r][p]);
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
  const uint16_t* w = a.w + panel * 16 * a.depth;
  for (int64_t k = 0; k < a.depth; k += kPairColumns) add_step<R, P>(x + k, w + k * 16, a.depth, acc);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) put(a, epilogue, row + r, (panel + p) * 16, acc[r][p]);
}

// P panels and rows [row, row_end), the first of which is x.
template <int P, int R = kRows>
static void block(const Product& a, const Epilogue& epilogue, const float* x, int64_t row, int64_t row_end, int64_t panel) {
  for (; row + R <= row_end; row += R, x += R * a.depth) tile<R, P>(a, epilogue, x, row, panel);
  if constexpr (R > 1)
    if (row < row_end) block<P, R / 2>(a, epilogue, x, row, row_end, panel);
}

// x is widened to scratch first.
static void multiply_task(const Product& a, const Epilogue& epilogue, int64_t row, int64_t row_end, int64_t panel,
                          int64_t panel_end, std::byte* scratch) {
  float* x = reinterpret_cast<float*>(scratch);
  for (int64_t i = 0; i < (row_end - row) * a.depth; i += 16) store(x + i, load_bf16(a.x + row * a.depth + i));
  for (; panel + 2 <= panel_end; panel += 2) block<2>(a, epilogue, x, row, row_end, panel);
  if (panel < panel_end) block<1>(a, epilogue, x, row, row_end, panel);
}

#endif

KERNEL(matmul_bf16) {
  const Weight& weight = *call.in[1].weight;
  if (weight.layout != Layout::pairs) __builtin_trap();  // the binding makes no other for this op
  const bool rounded = call.flag("rounded");
  const Product a{call.in[0].as<uint16_t>(), reinterpret_cast<const uint16_t*>(weight.data),
                  rounded ? nullptr : call.out[0].as<float>(), rounded ? call.out[0].as<uint16_t>() : nullptr, weight.cols,
                  weight.rows};
  if (a.depth > kMaxDepth) __builtin_trap();  // the op's shape rule refuses it
  const Epilogue epilogue(call);
  const Tasks tasks(call.in[0].rows(), parts(a.columns, 16), kTaskRows, max_rows(a.depth), kMaxPanels, 4, worker.count);
  shape_whole_tiles();
  for (int64_t task; (task = worker.next()) < tasks.count();)
    multiply_task(a, epilogue, tasks.row(task), tasks.row_end(task), tasks.panel(task), tasks.panel_end(task),
                  worker.scratch);
}

}  // namespace weft::ISA
