// matmul_i8: y = act(x Wᵀ + b) with x and W in int8 and exact integer sums.
//
// Meaning  weft/ops/quant.py
// Layout   x int8 [M, K], K a multiple of 64, and headers float32 [M, 3] (token_codes.h); W int8 in quads
//          (pack/quads.h); y float32 [M, N], or int8 [M, N] and headers, for the product with the weight `reader`
// Method   sum = Σ x w + excess * w[column]; y = act(fma(float(sum) * scale of w, scale of x, bias)). Sums are exact, so
//          every level gives the same bits. A result that becomes int8 waits in scratch until its row is complete
// Bound    the matrix unit and the second-level cache, or byte products; memory, one pass over W, with few rows
#include "core/weight.h"
#include "kernels/matmul_epilogue.h"
#include "kernels/token_codes.h"
#include "pack/quads.h"
#if defined(WEFT_ISA_amx)
#include "simd/tiles.h"
#endif

namespace weft::ISA {

constexpr int64_t kMaxPanels = 1 << 20;  // as many as there are
constexpr int64_t kMaxDepth = 8192, kMaxQuantised = 3072;

struct Product {
  const int8_t* x;
  const float* headers;
  const int8_t* w;
  const float* scales;  // of W
  float* y;             // null where the result becomes int8
  int8_t* codes;
  float* y_headers;
  const float* factors;  // of the columns of a y that becomes int8; null: none
  int64_t depth, columns;  // K, N
};

// The header of a row: its scale, and its largest element's excess, four columns (in bytes of a panel) and place in them.
struct RowHeader {
  float scale;
  int32_t excess, fours, place;
};

// The numbers are not trusted: the column is clamped to the row.
WEFT_INLINE RowHeader read_header(const float* header, int64_t depth) {
  const auto bounded = [](float value, float limit) {
    return static_cast<int32_t>(value > 0 ? (value < limit ? value : limit) : 0.0f);
  };
  const int32_t column = bounded(header[1], static_cast<float>(depth - 1));
  return {header[0], bounded(header[2], kMaxExcess), column / 4 * 64, column % 4};
}

// A complete row of results.
static void quantise_row(const Product& a, const float* y, int64_t row) {
  write_codes(y, a.columns, peaks_of(y, a.columns), a.codes + row * a.columns, a.y_headers + row * kHeader);
}

#if defined(WEFT_ISA_amx)

constexpr int64_t kBlock = 1024;  // sums of 32 rows and 2 panels
constexpr int64_t kTaskRows = 32, kGroupBytes = 512 << 10;
WEFT_INLINE int64_t least_rows(int64_t, int) { return kTaskRows; }
constexpr int64_t kMaxRows = 256;  // of a task

// The same with the excess split for two products with unsigned bytes.
struct ByteHeader {
  float scale;
  int32_t fours;
  uint32_t excess[2];
  WEFT_INLINE ByteHeader(const RowHeader& header) : scale(header.scale), fours(header.fours) {
    const auto low = static_cast<uint32_t>(smaller(header.excess, 255)), high = static_cast<uint32_t>(header.excess) - low;
    excess[0] = low << 8 * header.place, excess[1] = high << 8 * header.place;
  }
};

// Sums [rows, 32] of two panels that wait for scales, bias and activation.
struct Pending {
  const int32_t* sums = nullptr;
  const ByteHeader* headers = nullptr;
  float* y = nullptr;  // of the first row, column 0
  int64_t rows = 0, panel = 0, done = 0;
};

WEFT_INLINE f32x16 scaled(const int32_t* sums, const ByteHeader& header, const int8_t* w, f32x16 scale, f32x16 bias) {
  const __m512i four = _mm512_loadu_si512(w + header.fours);
  __m512i total = _mm512_loadu_si512(sums);
  total = _mm512_dpbusd_epi32(total, _mm512_set1_epi32(static_cast<int>(header.excess[0])), four);
  total = _mm512_dpbusd_epi32(total, _mm512_set1_epi32(static_cast<int>(header.excess[1])), four);
  return fma(f32x16{_mm512_cvtepi32_ps(total)} * scale, splat(header.scale), bias);
}

// Finishes up to `count` more rows.
using Finish = void (*)(const Product& a, const Epilogue& epilogue, Pending& pending, int64_t count);

template <Activation kind, bool rough>
static void finish_some(const Product& a, const Epilogue& epilogue, Pending& pending, int64_t count) {
  const int64_t begin = pending.done, end = smaller(pending.rows, begin + count), columns = a.columns;
  const int64_t column = pending.panel * 16, left = columns - column;
  const f32x16 scale[2] = {load(a.scales + column), left > 16 ? load(a.scales + column + 16) : zero()};
  f32x16 bias[2] = {zero(), zero()};
  if (epilogue.bias) bias[0] = load_n(epilogue.bias + column, left);
  if (epilogue.bias && left > 16) bias[1] = load_n(epilogue.bias + column + 16, left - 16);
  f32x16 factor[2] = {splat(1.0f), splat(1.0f)};
  if (rough && a.factors) factor[0] = load(a.factors + column), factor[1] = load(a.factors + column + 16);
  const int8_t *w = a.w + column * a.depth, *w_next = left > 16 ? w + 16 * a.depth : w;
  const ByteHeader* header = pending.headers + begin;
  const int32_t* sums = pending.sums + begin * 32;
  float* y = pending.y + begin * columns + column;
  for (int64_t r = begin; r < end; ++r, ++header, sums += 32, y += columns) {
    f32x16 first = scaled(sums, *header, w, scale[0], bias[0]);
    f32x16 second = scaled(sums + 16, *header, w_next, scale[1], bias[1]);
    first = rough ? activate_rough<kind>(first) * factor[0] : activate_coarse<kind>(first);
    second = rough ? activate_rough<kind>(second) * factor[1] : activate_coarse<kind>(second);
    if (left >= 32) {
      store(y, first);
      store(y + 16, second);
    } else {
      store_n(y, first, left);
      if (left > 16) store_n(y + 16, second, left - 16);
    }
  }
  pending.done = end;
}

static Finish finish_for(const Product& a, const Epilogue& epilogue) {
  Finish chosen = nullptr;
  with_activation(epilogue.activation, [&](auto kind) {
    chosen = a.y ? finish_some<kind(), false> : finish_some<kind(), true>;
  });
  return chosen;
}

// Sums of 16 R rows and 16 P columns: tmm0 to tmm3; tmm4 and tmm5 hold rows of x, tmm6 and tmm7 panels of W. While the
// matrix unit multiplies, `meanwhile` lets the vector units finish the block before.
template <int R, int P, class F>
WEFT_INLINE void multiply(const int8_t* x, const int8_t* w, int64_t depth, int32_t* sums, F meanwhile) {
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kQuadColumns) {
    _tile_loadd(4, x + k, depth);
    _tile_loadd(6, w + k * 16, 64);
    _tile_dpbssd(0, 4, 6);
    if constexpr (P > 1) _tile_loadd(7, w + (depth + k) * 16, 64);
    if constexpr (P > 1) _tile_dpbssd(1, 4, 7);
    if constexpr (R > 1) _tile_loadd(5, x + 16 * depth + k, depth);
    if constexpr (R > 1) _tile_dpbssd(2, 5, 6);
    if constexpr (R > 1 && P > 1) _tile_dpbssd(3, 5, 7);
    meanwhile();
  }
  _tile_stored(0, sums, 128);
  if constexpr (P > 1) _tile_stored(1, sums + 16, 128);
  if constexpr (R > 1) _tile_stored(2, sums + 16 * 32, 128);
  if constexpr (R > 1 && P > 1) _tile_stored(3, sums + 16 * 32 + 16, 128);
}

struct Scratch {
  int32_t* sums;
  ByteHeader* headers;
  int8_t* last_rows;
  float* wide;  // [2][32][columns]: rows before they are quantised
  Scratch(std::byte* data, int64_t depth) {
    sums = reinterpret_cast<int32_t*>(data);
    headers = reinterpret_cast<ByteHeader*>(data + 2 * kBlock * 4);
    last_rows = reinterpret_cast<int8_t*>(data + 2 * kBlock * 4 + kMaxRows * sizeof(ByteHeader));
    wide = reinterpret_cast<float*>(last_rows + 16 * depth);
  }
};
static_assert(2 * kBlock * 4 + kMaxRows * sizeof(ByteHeader) + 16 * kMaxQuantised + 64 * kMaxQuantised * 4 <= kScratchBytes);

// Rows that wait to be quantised.
struct Complete {
  float* wide = nullptr;
  int64_t row = 0, rows = 0, done = 0;
};

static void quantise_some(const Product& a, Complete& complete, int64_t count) {
  for (const int64_t end = smaller(complete.rows, complete.done + count); complete.done < end; ++complete.done)
    quantise_row(a, complete.wide + complete.done * a.columns, complete.row + complete.done);
}

// Rows [row, row_end) times panels [panel, panel_end), in blocks of up to 32 rows and 2 panels: rows of x stay in the
// first-level cache while a group of panels goes by that stays in the second for the next rows. Rows of results that
// become int8 take all panels in turn, and are quantised, one with each block, while the next rows are multiplied. Last rows
// that do not fill a tile are copied to scratch first and padded with zeros.
static void multiply_task(const Product& a, const Epilogue& epilogue, int64_t row, int64_t row_end, int64_t panel,
                          int64_t panel_end, std::byte* memory) {
  const Scratch scratch(memory, a.depth);
  const int64_t whole_end = row + (row_end - row) / 16 * 16, last = row_end - whole_end, depth = a.depth;
  __builtin_memcpy(scratch.last_rows, a.x + whole_end * depth, static_cast<size_t>(last * depth));
  __builtin_memset(scratch.last_rows + last * depth, 0, static_cast<size_t>((16 - last) * depth));
  for (int64_t r = row; r < row_end; ++r) scratch.headers[r - row] = read_header(a.headers + r * kHeader, depth);

  const Finish finish = finish_for(a, epilogue);
  Pending pending;
  Complete complete;
  int64_t turn = 0, turns = 0;
  // Rows that are finished per step. An activation's many instructions run better in long stretches, because the busy
  // matrix unit occupies one of the two vector units.
  const int64_t share = larger(a.y ? 1 : 16, parts(32, depth / kQuadColumns));
  const int64_t rows_share = parts(32 * 32, a.columns);
  const int64_t group = a.y ? larger(2, kGroupBytes / (16 * depth) / 2 * 2) : kMaxPanels;
  for (; panel < panel_end; panel += group)
    for (int64_t r = row, step; r < row_end; r += step, ++turns) {
      const int8_t* x = r < whole_end ? a.x + r * depth : scratch.last_rows;
      step = r + 32 <= whole_end ? 32 : 16;
      float* y = a.y ? a.y + r * a.columns : scratch.wide + turns % 2 * 32 * a.columns;
      for (int64_t p = panel; p < smaller(panel + group, panel_end); p += 2, ++turn) {
        int32_t* to = scratch.sums + turn % 2 * kBlock;
        const int8_t* w = a.w + p * 16 * depth;
        const int64_t panels = smaller(2, panel_end - p);
        const auto meanwhile = [&] { finish(a, epilogue, pending, share); };
        if (step == 32 && panels == 2) multiply<2, 2>(x, w, depth, to, meanwhile);
        else if (step == 32) multiply<2, 1>(x, w, depth, to, meanwhile);
        else if (panels == 2) multiply<1, 2>(x, w, depth, to, meanwhile);
        else multiply<1, 1>(x, w, depth, to, meanwhile);
        if (p > panel) quantise_some(a, complete, rows_share);
        pending = {to, scratch.headers + (r - row), y, smaller(step, row_end - r), p, 0};
      }
      if (!a.y) {
        quantise_some(a, complete, 32);
        complete = {y, r, smaller(step, row_end - r), 0};
      }
    }
  finish(a, epilogue, pending, 32);
  if (!a.y) quantise_some(a, complete, 32);
}

#else

constexpr int64_t kTaskRows = 8, kStep = 32;  // rows of a tile, columns that the level multiplies at a time
constexpr int64_t kMaxRows = 64;  // of a task
WEFT_INLINE void shape_whole_tiles() {}
// Rows that become int8 belong to one task each; tasks get equal shares of at most 16.
WEFT_INLINE int64_t least_rows(int64_t rows, int workers) {
  return larger(1, parts(rows, workers * larger(1, parts(rows, 16 * workers))));
}

// Signed bytes in the form of matmul_ints.h: plus 128, except at levels that multiply signed bytes.
#if defined(WEFT_ISA_neon)
constexpr int kLimit = 127, kOffset = 0;
#else
constexpr int kLimit = 255, kOffset = 128;
#endif
WEFT_INLINE u8x64 load_codes(const int8_t* p) {
  u8x64 codes = load_bytes(reinterpret_cast<const std::byte*>(p));
#if defined(WEFT_ISA_avx512)
  codes.v = _mm512_xor_si512(codes.v, _mm512_set1_epi8(-128));
#elif defined(WEFT_ISA_avx2)
  codes.lo = _mm256_xor_si256(codes.lo, _mm256_set1_epi8(-128));
  codes.hi = _mm256_xor_si256(codes.hi, _mm256_set1_epi8(-128));
#elif defined(WEFT_ISA_wasm128)
  for (v128_t& code : codes.v) code = wasm_v128_xor(code, wasm_i8x16_const_splat(-128));
#elif !defined(WEFT_ISA_neon)
  for (uint8_t& code : codes.v) code ^= 128;
#endif
  return codes;
}

// The correction for levels that multiply unsigned codes: -128 times the sums of every 32 columns.
WEFT_INLINE int32_t start_of(const int8_t* x, int64_t count) {
  int32_t total = 0;
  for (int64_t k = 0; kOffset && k < count; ++k) total += x[k];
  return -kOffset * total;
}

// The excess of a row's largest element over its code, as four groups of columns of at most 127 each, which every panel
// adds to the row's products.
struct alignas(16) Excess {
  int8_t x[16] = {};
  int32_t fours, start;
  float scale;  // of the row

  WEFT_INLINE explicit Excess(const RowHeader& header) : fours(header.fours), start(-kOffset * header.excess), scale(header.scale) {
    for (int32_t g = 0, left = header.excess; g < 4; ++g) {
      const auto some = static_cast<int32_t>(smaller(left, 127));
      x[4 * g + header.place] = static_cast<int8_t>(some);
      left -= some;
    }
  }
  WEFT_INLINE i32x16 of(const int8_t* w) const {
    const u8x64 four = load_codes(w + fours), codes[4] = {four, four, four, four};
    i32x16 total = splat_i(&start);
    dot_rows<kLimit, 4, 1>(&total, codes, x, 0);
    return total;
  }
};

struct Scratch {
  Excess* headers;
  int32_t* starts;  // [rows][K / 32]
  float* wide;      // [rows][columns]: rows before they are quantised
  Scratch(std::byte* data, int64_t depth) {
    headers = reinterpret_cast<Excess*>(data);
    starts = reinterpret_cast<int32_t*>(data + kMaxRows * sizeof(Excess));
    wide = reinterpret_cast<float*>(starts + kMaxRows * depth / kStep);
  }
};
static_assert(kMaxRows * sizeof(Excess) + kMaxRows * kMaxDepth / kStep * 4 + kMaxRows * kMaxQuantised * 4 <= kScratchBytes);

#if defined(WEFT_ISA_neon_dot)

// acc += the products of all columns, four rows in the registers at a time.
template <int R>
WEFT_INLINE void add_products(const Product& a, const int8_t* x, const int32_t*, const int8_t* w, i32x16 (&acc)[R]) {
  constexpr int together = R < kPass ? R : kPass;
  for (int r = 0; r < R; r += together) {
    i32x16 sum[together];
#pragma GCC unroll 4
    for (int i = 0; i < together; ++i) sum[i] = acc[r + i];
    const int8_t* codes = w;
    for (int64_t k = 0; k < a.depth; k += 16, codes += 256) {
      int8x16_t sixteen[together];
#pragma GCC unroll 4
      for (int i = 0; i < together; ++i) sixteen[i] = vld1q_s8(x + (r + i) * a.depth + k);
      add_group<kLimit, 0>(sum, load_codes(codes), sixteen);
      add_group<kLimit, 1>(sum, load_codes(codes + 64), sixteen);
      add_group<kLimit, 2>(sum, load_codes(codes + 128), sixteen);
      add_group<kLimit, 3>(sum, load_codes(codes + 192), sixteen);
    }
#pragma GCC unroll 4
    for (int i = 0; i < together; ++i) acc[r + i] = sum[i];
  }
}

#else

template <int R>
WEFT_INLINE void add_products(const Product& a, const int8_t* x, const int32_t* starts, const int8_t* w, i32x16 (&acc)[R]) {
  constexpr int together = R <= kTogether ? R : R % kTogether ? R / 2 : kTogether;
  const int64_t steps = a.depth / kStep;
  for (int64_t step = 0; step < steps; ++step) {
    u8x64 codes[8];
#pragma GCC unroll 8
    for (int g = 0; g < 8; ++g) codes[g] = load_codes(w + step * kStep * 16 + g * 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; r += together) {
      i32x16 total[together];
      for (int i = 0; i < together; ++i) total[i] = splat_i(starts + (r + i) * steps + step);
      dot_rows<kLimit, 8, together>(total, codes, x + r * a.depth + step * kStep, a.depth);
      for (int i = 0; i < together; ++i) acc[r + i] = acc[r + i] + total[i];
    }
  }
}

#endif

// Scales, bias and activation of the sums of `rows` rows and one panel; y is that of the first row, column 0.
using Finish = void (*)(const Product& a, const Epilogue& epilogue, const i32x16* sums, const Excess* headers, int64_t rows,
                        int64_t column, float* y);

template <Activation kind, bool rough>
static void finish_rows(const Product& a, const Epilogue& epilogue, const i32x16* sums, const Excess* headers, int64_t rows,
                        int64_t column, float* y) {
  const int64_t count = smaller(16, a.columns - column), stride = a.columns;
  const f32x16 scale = load(a.scales + column), bias = epilogue.bias ? load_n(epilogue.bias + column, count) : zero();
  const f32x16 factor = rough && a.factors ? load(a.factors + column) : splat(1.0f);
  y += column;
  for (int64_t r = 0; r < rows; ++r, y += stride) {
    f32x16 result = fused(to_float(sums[r]) * scale, splat(headers[r].scale), bias);
    result = rough ? activate_rough<kind>(result) * factor : activate_coarse<kind>(result);
    if (count == 16) store(y, result);
    else store_n(y, result, count);
  }
}

static Finish finish_for(const Product& a, const Epilogue& epilogue) {
  Finish chosen = nullptr;
  with_activation(epilogue.activation, [&](auto kind) {
    chosen = a.y ? finish_rows<kind(), false> : finish_rows<kind(), true>;
  });
  return chosen;
}

template <int R>
struct Rows {};

// The sums of R rows and one panel; x, headers and starts are those of the first row.
template <int R>
static void tile(const Product& a, const int8_t* x, const Excess* headers, const int32_t* starts, const int8_t* w,
                 i32x16* sums) {
  i32x16 acc[R];
  for (int r = 0; r < R; ++r) acc[r] = headers[r].of(w);
  add_products(a, x, starts, w, acc);
  for (int r = 0; r < R; ++r) sums[r] = acc[r];
}

static void multiply_task(const Product& a, const Epilogue& epilogue, int64_t row, int64_t row_end, int64_t panel,
                          int64_t panel_end, std::byte* memory) {
  const Scratch scratch(memory, a.depth);
  const int64_t rows = row_end - row, depth = a.depth, steps = depth / kStep;
  const int8_t* x = a.x + row * depth;
  for (int64_t r = 0; r < rows; ++r) {
    scratch.headers[r] = Excess(read_header(a.headers + (row + r) * kHeader, depth));
    for (int64_t step = 0; step < steps; ++step)
      scratch.starts[r * steps + step] = start_of(x + r * depth + step * kStep, kStep);
  }
  float* y = a.y ? a.y + row * a.columns : scratch.wide;
  const Finish finish = finish_for(a, epilogue);
  i32x16 sums[kTaskRows];
  for (; panel < panel_end; ++panel) {
    int64_t r = 0;
    const auto multiply = [&]<int R>(Rows<R>) {
      tile<R>(a, x + r * depth, scratch.headers + r, scratch.starts + r * steps, a.w + panel * 16 * depth, sums);
      finish(a, epilogue, sums, scratch.headers + r, R, panel * 16, y + r * a.columns);
      r += R;
    };
    while (r + kTaskRows <= rows) multiply(Rows<kTaskRows>{});
    if (r + 4 <= rows) multiply(Rows<4>{});
    if (rows - r == 3) multiply(Rows<3>{});
    else if (rows - r == 2) multiply(Rows<2>{});
    else if (rows - r == 1) multiply(Rows<1>{});
  }
  if (!a.y)
    for (int64_t r = 0; r < rows; ++r) quantise_row(a, y + r * a.columns, row + r);
}

#endif

KERNEL(matmul_i8) {
  const Weight& weight = *call.in[2].weight;
  const Weight* reader = call.in[4].weight;
  if (weight.layout != Layout::quads || weight.cols > kMaxDepth) __builtin_trap();  // binding refuses anything else
  const bool quantised = call.flag("quantised");
  const Quads quads{weight.data, weight.rows, weight.cols};
  const Product a{call.in[0].as<int8_t>(), call.in[1].as<float>(), reinterpret_cast<const int8_t*>(quads.codes()),
                  reinterpret_cast<const float*>(quads.scales()), quantised ? nullptr : call.out[0].as<float>(),
                  quantised ? call.out[0].as<int8_t>() : nullptr, quantised ? call.out[1].as<float>() : nullptr,
                  reader ? reinterpret_cast<const float*>(Quads{reader->data, reader->rows, reader->cols}.factors()) : nullptr,
                  weight.cols, weight.rows};
  const Epilogue epilogue(call, 3);
  const int64_t panels = parts(a.columns, 16);
  const int64_t min_panels = quantised ? kMaxPanels : 4;  // a row that becomes int8 belongs to one task
  const int64_t rows = call.in[0].rows(), least = quantised ? least_rows(rows, worker.count) : kTaskRows;
  const Tasks tasks(rows, panels, least, kMaxRows, kMaxPanels, min_panels, worker.count);
  shape_whole_tiles();
  for (int64_t task; (task = worker.next(tasks.count())) < tasks.count();)
    multiply_task(a, epilogue, tasks.row(task), tasks.row_end(task), tasks.panel(task), tasks.panel_end(task),
                  worker.scratch);
}

}  // namespace weft::ISA
