// matmul_bf16: y = act(x Wᵀ + b) with x and W in bfloat16 and float32 sums.
//
// Meaning  weft/ops/matmul.py
// Layout   x [M, K], y [M, N] float32; W bfloat16 in pairs (pack/pairs.h)
// Method   x is rounded once per task. Per 32 columns two chains, over the even and over the odd ones, are added up and
//          then added to the element. Products of bfloat16 are exact in float32, so this is what an instruction of the
//          matrix unit does, and every level gives the same bits (subnormal sums apart, which the unit makes zero)
// Bound    the matrix unit, or fma throughput; memory, one pass over W, with few rows
#include "core/half.h"
#include "core/weight.h"
#include "kernels/matmul_epilogue.h"
#include "pack/pairs.h"
#if defined(WEFT_ISA_amx)
#include "simd/tiles.h"
#endif

namespace weft::ISA {

constexpr int64_t kWide = 2;             // panels taken together
constexpr int64_t kSums = 4096;          // bytes of scratch before the rounded rows
constexpr int64_t kMaxRows = 128;        // of x in a task
constexpr int64_t kMaxPanels = 1 << 20;  // as many as there are: x is rounded once for all of them

struct Product {
  const float* x;
  float* y;
  const uint16_t* w;
  int64_t depth, padded, columns;  // K, K in whole steps of 32, N
};

#if defined(WEFT_ISA_amx)

using Rounded = uint16_t;
constexpr int64_t kTaskRows = 32;

static void round_row(const float* x, int64_t depth, int64_t padded, Rounded* out) {
  for (int64_t k = 0; k < padded; k += 16) {
    const __m256bh part = _mm512_cvtneps_pbh(load_n(x + k, smaller(16, larger(0, depth - k))).v);
    _mm256_store_si256(reinterpret_cast<__m256i*>(out + k), reinterpret_cast<const __m256i&>(part));
  }
}

// Sums of 16 x R rows and 16 x P columns to `sums` [R][P][16][16]: tmm0 to tmm3; tmm4 and tmm5 hold rows of x, tmm6 and
// tmm7 panels of W.
template <int R, int P>
static void multiply(const Rounded* x, const uint16_t* w, int64_t padded, float* sums) {
  const int64_t stride = padded * 2;
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
  for (int64_t k = 0; k < padded; k += kPairColumns) {
    _tile_loadd(4, x + k, stride);
    _tile_loadd(6, w + k * 16, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P > 1) _tile_loadd(7, w + (padded + k) * 16, 64);
    if constexpr (P > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) _tile_loadd(5, x + 16 * padded + k, stride);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, 64);
  if constexpr (P > 1) _tile_stored(1, sums + 256, 64);
  if constexpr (R > 1) _tile_stored(2, sums + P * 256, 64);
  if constexpr (R > 1 && P > 1) _tile_stored(3, sums + 3 * 256, 64);
}

// Up to 32 rows and `P` panels, finished. Rows beyond the last are zeros in scratch and are not stored.
template <int P>
static void block(const Product& a, const Epilogue& epilogue, const Rounded* x, int64_t row, int64_t rows, int64_t panel,
                  float* sums) {
  const uint16_t* w = a.w + panel * 16 * a.padded;
  if (rows > 16) multiply<2, P>(x, w, a.padded, sums);
  else multiply<1, P>(x, w, a.padded, sums);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t p = 0; p < P; ++p) {
      const int64_t column = (panel + p) * 16, count = smaller(16, a.columns - column);
      const f32x16 total = load(sums + (r / 16 * P + p) * 256 + r % 16 * 16);
      store_n(a.y + (row + r) * a.columns + column, finished(epilogue, total, column, count), count);
    }
}

#else

using Rounded = float;  // of bfloat16 precision
#if defined(WEFT_ISA_avx512)
constexpr int kRows = 4;
#elif defined(WEFT_ISA_avx2)
constexpr int kRows = 2;
#else
constexpr int kRows = 1;
#endif
constexpr int64_t kTaskRows = kRows;

WEFT_INLINE void shape_whole_tiles() {}

static void round_row(const float* x, int64_t depth, int64_t padded, Rounded* out) {
  for (int64_t k = 0; k < depth; ++k) out[k] = bf16_to_float(float_to_bf16_normal(x[k]));
  for (int64_t k = depth; k < padded; ++k) out[k] = 0;
}

template <int R, int P>
WEFT_INLINE void add_step(const Rounded* x, const uint16_t* w, int64_t padded, f32x16 (&acc)[R][P]) {
  f32x16 even[R][P], odd[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) even[r][p] = zero(), odd[r][p] = zero();
  for (int64_t k = 0; k < kPairColumns; k += 2) {
    f32x16 first[P], second[P];
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) load_bf16_pairs(w + (p * padded + k) * 16, first[p], second[p]);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int p = 0; p < P; ++p) {
        even[r][p] = fma(splat(x[r * padded + k]), first[p], even[r][p]);
        odd[r][p] = fma(splat(x[r * padded + k + 1]), second[p], odd[r][p]);
      }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = acc[r][p] + (even[r][p] + odd[r][p]);
}

template <int R, int P>
static void tile(const Product& a, const Epilogue& epilogue, const Rounded* x, int64_t row, int64_t panel) {
  f32x16 acc[R][P];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) acc[r][p] = zero();
  const uint16_t* w = a.w + panel * 16 * a.padded;
  for (int64_t k = 0; k < a.padded; k += kPairColumns) add_step<R, P>(x + k, w + k * 16, a.padded, acc);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      const int64_t column = (panel + p) * 16, count = smaller(16, a.columns - column);
      store_n(a.y + (row + r) * a.columns + column, finished(epilogue, acc[r][p], column, count), count);
    }
}

// Up to 32 rows and P panels, finished.
template <int P, int R = kRows>
static void block(const Product& a, const Epilogue& epilogue, const Rounded* x, int64_t row, int64_t rows, int64_t panel,
                  float* sums) {
  for (; rows >= R; rows -= R, row += R, x += R * a.padded) tile<R, P>(a, epilogue, x, row, panel);
  if constexpr (R > 1)
    if (rows) block<P, R / 2>(a, epilogue, x, row, rows, panel, sums);
}

#endif

// Rounds rows [row, row_end) of x to scratch, with zeros up to whole tiles.
static void round_rows(const Product& a, int64_t row, int64_t row_end, Rounded* out) {
  const int64_t whole = parts(row_end - row, 16) * 16;
  for (int64_t r = 0; r < row_end - row; ++r) round_row(a.x + (row + r) * a.depth, a.depth, a.padded, out + r * a.padded);
  for (int64_t i = (row_end - row) * a.padded; i < whole * a.padded; ++i) out[i] = 0;
}

KERNEL(matmul_bf16) {
  const Weight& weight = *call.in[1].weight;
  if (weight.layout != Layout::pairs) __builtin_trap();  // the binding makes no other for this op
  const Product a{call.in[0].as<float>(), call.out[0].as<float>(), reinterpret_cast<const uint16_t*>(weight.data),
                  weight.cols, padded_columns(weight.cols), weight.rows};
  auto* sums = reinterpret_cast<float*>(worker.scratch);
  auto* x = reinterpret_cast<Rounded*>(worker.scratch + kSums);
  const int64_t room = (static_cast<int64_t>(kScratchBytes) - kSums) / (a.padded * static_cast<int64_t>(sizeof(Rounded)));
  const int64_t row_step = smaller(kMaxRows, room / 16 * 16);
  if (row_step == 0) __builtin_trap();  // rows of ten thousands of columns: refused when the program was made
  const Epilogue epilogue(call);
  const Tasks tasks(call.in[0].rows(), parts(a.columns, 16), smaller(kTaskRows, row_step), row_step, kMaxPanels, 4,
                    worker.count);
  shape_whole_tiles();
  int64_t rounded = -1;  // the rows that scratch has
  for (int64_t task; (task = worker.next()) < tasks.count();) {
    const int64_t row = tasks.row(task), row_end = tasks.row_end(task), panel_end = tasks.panel_end(task);
    if (row != rounded) round_rows(a, row, row_end, x);
    rounded = row;
    for (int64_t panel = tasks.panel(task); panel < panel_end; panel += kWide)
      for (int64_t r = row; r < row_end; r += 32) {
        const int64_t rows = smaller(32, row_end - r);
        const Rounded* from = x + (r - row) * a.padded;
        if (panel + 1 < panel_end) block<2>(a, epilogue, from, r, rows, panel, sums);
        else block<1>(a, epilogue, from, r, rows, panel, sums);
      }
  }
}

}  // namespace weft::ISA
