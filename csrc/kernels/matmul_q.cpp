// matmul_q: y = act(x Wᵀ + b) with int8 activations and quantised weights, integers inside a block.
//
// Meaning  weft/ops/quant.py; docs/design/core.md has the formulas
// Layout   x rows of A8 blocks (matmul_a8.h); W quantised panels (pack/panels.h); y [M, N] float32
// Method   a chunk of 16 rows of W x 32 columns is unpacked once and multiplied with up to kRows rows of x; one float
//          chain over the blocks per element, one rounding a step at every level
// Bound    memory with few rows, one pass over W; integer multiply-adds from about 16 rows on
#include "core/weight.h"
#include "kernels/matmul_a8.h"
#include "kernels/matmul_codes.h"
#include "kernels/matmul_epilogue.h"
#if defined(WEFT_ISA_neon_dot) || defined(WEFT_ISA_neon_i8mm)
#include "kernels/matmul_groups_neon.h"
#define WEFT_GROUP_BY_GROUP 1
#endif
#if defined(WEFT_ISA_amx)
#include "kernels/matmul_tiles.h"
#elif defined(WEFT_ISA_neon_dot)
#include "kernels/matmul_laid_neon.h"
#endif

namespace weft::ISA {

#if defined(WEFT_ISA_avx512)  // and amx
constexpr int kRows = 12;
#elif defined(WEFT_ISA_neon_dot) || defined(WEFT_ISA_neon_i8mm)
constexpr int kRows = 8;
#elif defined(WEFT_ISA_avx2) || defined(WEFT_ISA_neon)
constexpr int kRows = 4;
#else
constexpr int kRows = 2;
#endif
#if defined(WEFT_ISA_neon_dot)
constexpr int64_t kRowStep = 96;  // W is laid out for each
#else
constexpr int64_t kRowStep = 48;
#endif
constexpr int64_t kFewRows = 4;  // bound by memory
constexpr int64_t kPanelStep = 32;
#if defined(WEFT_ISA_neon)
constexpr int64_t kFetchBytes = 8192;
#else
constexpr int64_t kFetchBytes = 4096;
#endif
constexpr int lower_tile(int rows) { return rows == 12 ? 8 : rows / 2; }
constexpr int together(int rows) { return rows <= kTogether ? rows : rows % kTogether ? rows / 2 : kTogether; }

// Numbers that the products need for a row of x beside its codes, computed once per task. Four-byte words per block:
//   types with an offset     -offset * sum of q, an integer per sub-block
//   q4_1, q5_1               d * sum of q, a float
//   q4_k, q5_k               sums of 32 q as int16, in pairs; q2_k reads the sums of 16 in the block itself
template <DType type>
constexpr int note_words() {
  constexpr Format f = format_of(type);
  if (f.offset) return f.subs ? f.subs : 1;
  return f.subs == 0 ? 1 : f.subs == 8 ? 4 : 0;
}

template <DType type>
static void take_notes(const A8<format_of(type).block>& x, int32_t* notes) {
  constexpr Format f = format_of(type);
  if constexpr (f.subs == 16) {
    if constexpr (f.offset > 0)
      for (int j = 0; j < 16; ++j) notes[j] = -f.offset * x.sum[j];
    return;
  }
  for (int j = 0; j < f.chunks(); ++j) {
    const int total = x.sum[2 * j] + x.sum[2 * j + 1];
    const auto small = static_cast<int16_t>(total);
    const float shift = x.d * static_cast<float>(total);
    if constexpr (f.offset > 0) notes[j] = -f.offset * total;
    else if constexpr (f.subs == 8) std::memcpy(reinterpret_cast<char*>(notes) + 2 * j, &small, 2);
    else std::memcpy(notes, &shift, 4);
  }
}

// Prefetches blocks of W kFetchBytes of codes before they are read, through all panels of a task and of the next one: W is
// read from memory, and the hardware's prefetcher does not run far enough ahead in two short streams. 1 to 2.5 times as
// fast.
template <DType type>
class Ahead {
 public:
  explicit Ahead(int64_t cols) : cols(cols) {}

  void start(const std::byte* matrix, Shares::Cut task) {
    data = matrix, now = task, then = {0, 0};
    enter_panel();
    for (int64_t i = 0; i < kBlocks; ++i) fetch_next();
  }
  void follow(Shares::Cut task) {
    if (now.begin < now.end) then = task;
    else now = task, enter_panel();
  }
  WEFT_INLINE void fetch_next() {
    for (int64_t i = 0; i < kCodeBytes; i += 64) __builtin_prefetch(codes + i);
    for (int64_t i = 0; i < f.header_bytes(); i += 64) __builtin_prefetch(headers + i);
    codes += kCodeBytes;
    headers += f.header_bytes();
    if (--left) return;
    if (++now.begin >= now.end && then.begin < then.end) now = then, then = {0, 0};
    enter_panel();
  }

 private:
  static constexpr Format f = format_of(type);
  static constexpr int64_t kCodeBytes = f.chunks() * f.chunk_bytes();  // of a block
  static constexpr int64_t kBlocks = (kFetchBytes + kCodeBytes - 1) / kCodeBytes;
  const std::byte *data = nullptr, *codes = nullptr, *headers = nullptr;
  int64_t cols, left = 0;
  Shares::Cut now{0, 0}, then{0, 0};  // panels to prefetch; reading past the last one does no harm

  void enter_panel() {
    codes = data + now.begin * f.panel_bytes(cols);
    headers = codes + f.code_bytes(cols);
    left = cols / f.block;
  }
};

// Rows of x with their notes, one panel of W.
template <DType type>
struct Strip {
  const A8<format_of(type).block>* x;
  const int32_t* notes;
  const std::byte *codes, *headers;
  int64_t blocks;  // of a row

  WEFT_INLINE const auto& block(int r, int64_t b) const { return x[r * blocks + b]; }
  WEFT_INLINE const int32_t* note(int r, int64_t b) const { return notes + (r * blocks + b) * note_words<type>(); }
  WEFT_INLINE i32x16 start(int r, int64_t b, int sub) const {
    return format_of(type).offset ? splat_i(note(r, b) + sub) : zero_i();
  }
  WEFT_INLINE const std::byte* header(int64_t b) const { return headers + b * format_of(type).header_bytes(); }
};

// The sums of `groups` vectors of codes from column `column` of block b on, times n rows of x; they are of sub-block
// `sub`.
template <int groups, int n, DType type>
WEFT_INLINE void dot_block(const Strip<type>& s, int r, int64_t b, int sub, const u8x64* codes, int column,
                           i32x16* total) {
  for (int i = 0; i < n; ++i) total[i] = s.start(r + i, b, sub);
  const int64_t stride = s.blocks * static_cast<int64_t>(sizeof s.x[0]);
  dot_rows<largest_code<type>(), groups, n>(total, codes, s.block(r, b).q + column, stride);
}

#if defined(WEFT_GROUP_BY_GROUP)
template <DType type>
WEFT_INLINE void add_row_block(const Strip<type>& s, int64_t b, f32x16& acc) {
  constexpr Format f = format_of(type);
  const auto& x = s.block(0, b);
  int32_t start = kFloatBits;
  if constexpr (f.offset > 0 && largest_code<type>() != 255) start += *s.note(0, b);
  i32x16 sum[1] = {splat_i(&start)};
  add_groups<type, 0, 8>(sum, s.codes + b * f.chunk_bytes(), x.q);
  const f32x16 d = half_row<type>(s.header(b), 0) * splat(x.d);
  acc = fused(d, quarters<f32x16>([&](int i) { return from_bits(sum[0].v[i]); }), acc);
  if constexpr (f.mins) {
    float shift;
    std::memcpy(&shift, s.note(0, b), 4);
    acc = fused(half_row<type>(s.header(b), 1), splat(shift), acc);
  }
}

// Super-block b, and one row.
template <DType type>
WEFT_INLINE void add_row_super_block(const Strip<type>& s, int64_t b, f32x16& acc) {
  constexpr Format f = format_of(type);
  constexpr bool start = f.offset > 0 && !has_levels<type>();
  const auto& x = s.block(0, b);
  const std::byte* header = s.header(b);
  i32x16 total = zero_i();
#pragma GCC unroll 1
  for (int j = 0; j < f.subs / 2; ++j) {
    const std::byte* chunk = s.codes + (b * 8 + j * 16 / f.subs) * f.chunk_bytes();
    i32x16 sum[2][1], scale[2];
    for (int h = 0; h < 2; ++h) sum[h][0] = start ? splat_i(s.note(0, b) + 2 * j + h) : zero_i();
    if constexpr (f.subs == 8) {
      add_groups<type, 0, 8>(sum[0], chunk, x.q + 64 * j);
      add_groups<type, 0, 8>(sum[1], chunk + f.chunk_bytes(), x.q + 64 * j + 32);
    } else {
      add_groups<type, 0, 4>(sum[0], chunk, x.q + 32 * j);
      add_groups<type, 4, 8>(sum[1], chunk, x.q + 32 * j);
    }
    two_scales<type>(header, j, scale);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h)
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) total.v[i] = vmlaq_s32(total.v[i], scale[h].v[i], sum[h][0].v[i]);
  }
  acc = fused(half_row<type>(header, 0) * splat(x.d), to_float(total), acc);
  if constexpr (!f.mins) return;

  int32x4_t low[8] = {};  // of a row's even and odd sub-blocks beside each other
  const std::byte* mins = header + 64 + (f.nibbles ? 0 : f.scales_bytes());
#pragma GCC unroll 8
  for (int j = 0; j < f.subs / 2; ++j) {
    const int32_t sums = f.subs == 16 ? four_bytes(x.sum + 2 * j) : s.note(0, b)[j];
    const int16x8_t two = vreinterpretq_s16_s32(vdupq_n_s32(sums));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      int16x8_t min = widen8<false>(mins + 32 * j + 8 * i);
      if constexpr (f.nibbles) min = vshrq_n_s16(min, 4);
      low[2 * i] = vmlal_s16(low[2 * i], vget_low_s16(min), vget_low_s16(two));
      low[2 * i + 1] = vmlal_high_s16(low[2 * i + 1], min, two);
    }
  }
  const i32x16 under = quarters<i32x16>([&](int i) { return vpaddq_s32(low[2 * i], low[2 * i + 1]); });
  acc = fused((zero() - half_row<type>(header, 1)) * splat(x.d), to_float(under), acc);
}
#endif

// Block b of a 32-wide type: one scale a row, and for q4_1 and q5_1 a minimum.
template <DType type, int R>
WEFT_INLINE void add_block(const Strip<type>& s, int64_t b, f32x16* acc) {
  constexpr Format f = format_of(type);
#if defined(WEFT_GROUP_BY_GROUP)
  if constexpr (R == 1) return add_row_block(s, b, acc[0]);
#endif
  u8x64 codes[8];
  unpack<type>(s.codes + b * f.chunk_bytes(), codes);
  const f32x16 d = half_row<type>(s.header(b), 0);
  i32x16 total[together(R)];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    constexpr int n = together(R);
    if (r % n == 0) dot_block<8, n>(s, r, b, 0, codes, 0, total);
    acc[r] = fused(d * splat(s.block(r, b).d), to_float(total[r % n]), acc[r]);
    if constexpr (f.mins) {
      float shift;
      std::memcpy(&shift, s.note(r, b), 4);
      acc[r] = fused(half_row<type>(s.header(b), 1), splat(shift), acc[r]);
    }
  }
}

// Pair j of the sub-blocks of super-block b: 2 x 32 or 2 x 16 columns, each half times its integer scale.
template <DType type, int R>
WEFT_INLINE void add_pair(const Strip<type>& s, int64_t b, int j, pairs scale, i32x16* total) {
  constexpr Format f = format_of(type);
  constexpr int n = together(R), groups = 64 / f.subs, width = 256 / f.subs;
  const std::byte* chunk = s.codes + (b * 8 + j * 16 / f.subs) * f.chunk_bytes();
  const i32x16 scales[2] = {even(scale), odd(scale)};
  u8x64 codes[8];
  unpack<type>(chunk, codes);
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    if (f.subs == 8 && h == 1) unpack<type>(chunk + f.chunk_bytes(), codes);
    const int sub = 2 * j + h;
    i32x16 sums[n];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      if (r % n == 0) dot_block<groups, n>(s, r, b, sub, codes + (f.subs == 8 ? 0 : 4 * h), sub * width, sums);
      total[r] = total[r] + scales[h] * sums[r % n];
    }
  }
}

// The minima of super-block b times the sums of x under them.
template <DType type, int R>
WEFT_INLINE void add_mins(const Strip<type>& s, int64_t b, i32x16* low) {
  constexpr Format f = format_of(type);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) low[r] = zero_i();
  for (int j = 0; j < f.subs / 2; ++j) {
    const pairs min = min_pairs<type>(s.header(b), j);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const auto* sums = f.subs == 16 ? s.block(r, b).sum : reinterpret_cast<const int16_t*>(s.note(r, b));
      low[r] = dot_pairs(low[r], min, sums + 2 * j);
    }
  }
}

template <DType type, int R>
WEFT_INLINE void add_super_block(const Strip<type>& s, int64_t b, f32x16* acc) {
  constexpr Format f = format_of(type);
#if defined(WEFT_GROUP_BY_GROUP)
  if constexpr (R == 1) return add_row_super_block(s, b, acc[0]);
#endif
  i32x16 total[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) total[r] = zero_i();
  for (int j = 0; j < f.subs / 2; ++j) add_pair<type, R>(s, b, j, scale_pairs<type>(s.header(b), j), total);
  const f32x16 d = half_row<type>(s.header(b), 0);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = fused(d * splat(s.block(r, b).d), to_float(total[r]), acc[r]);
  if constexpr (f.mins) {
    const f32x16 minus = zero() - half_row<type>(s.header(b), 1);
    add_mins<type, R>(s, b, total);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) acc[r] = fused(minus * splat(s.block(r, b).d), to_float(total[r]), acc[r]);
  }
}

template <DType type, int R, bool fetch>
static void tile(const Strip<type>& s, Ahead<type>& ahead, float* y, int64_t y_stride, int64_t columns) {
  f32x16 acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = zero();
  Ahead<type> own = ahead;  // in registers
  for (int64_t b = 0; b < s.blocks; ++b) {
    if constexpr (fetch) own.fetch_next();
    if constexpr (format_of(type).subs == 0) add_block<type, R>(s, b, acc);
    else add_super_block<type, R>(s, b, acc);
  }
  if constexpr (fetch) ahead = own;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) store_n(y + r * y_stride, acc[r], smaller(16, columns));
}

// Any number of rows: as many tiles of R rows as fit, the rest in lower tiles. The first tile reads W and prefetches the next blocks.
template <DType type, int R = kRows, bool fetch = true>
static void tile_rows(Strip<type> s, Ahead<type>& ahead, int64_t rows, float* y, int64_t y_stride, int64_t columns) {
  if (rows < R) {
    if constexpr (R > 1) tile_rows<type, lower_tile(R), fetch>(s, ahead, rows, y, y_stride, columns);
    return;
  }
  tile<type, R, fetch>(s, ahead, y, y_stride, columns);
  s.x += R * s.blocks;
  s.notes += R * s.blocks * note_words<type>();
  tile_rows<type, R, false>(s, ahead, rows - R, y + R * y_stride, y_stride, columns);
}

#if defined(WEFT_ISA_neon_dot)
constexpr int64_t kFewestLaid = 5;  // rows for which it pays to lay W out
#endif
#if defined(WEFT_ISA_amx)
// How many of a task's rows go through the matrix unit. A tile that is not full costs as much as a full one, and K types
// are laid out at the cost of a dozen rows.
template <DType type>
constexpr int64_t rows_for_tiles(int64_t rows) {
  const int64_t whole = rows / kTileRows * kTileRows;
  return rows - whole >= (whole ? 6 : format_of(type).subs ? 13 : 10) ? rows : whole;
}
// Rows that 32-wide types multiply with a pass over W for every 16; with more it pays to lay W out once for all.
constexpr int64_t kFewestTiled = 9, kMostTiled = 48;
#endif

// One product: y = x Wᵀ, then the epilogue, cut into tasks.
template <DType type>
struct Product {
  static constexpr Format f = format_of(type);
  const Weight& weight;
  const std::byte* w = weight.data;  // of a stack the matrix at hand
  const A8<f.block>* x;
  float* y;
  const int64_t rows, columns = weight.rows, blocks = weight.cols / f.block;
  const Epilogue epilogue;
  const Call& call;
  const Worker& worker;
  int64_t noted = -1;  // the first row that the notes belong to
  int64_t laid = -1;   // the first row that is laid out for the matrix unit
  Ahead<type> ahead{weight.cols};

  Product(const Call& call, const Worker& worker)
      : weight(*call.in[1].weight), x(call.in[0].as<A8<f.block>>()), y(call.out[0].as<float>()),
        rows(call.in[0].rows()), epilogue(call), call(call), worker(worker) {}

  // Rows [row, row + count) with vectors.
  void multiply(int64_t row, int64_t count, int64_t panel, int64_t panel_end) {
    auto* notes = reinterpret_cast<int32_t*>(worker.scratch);
    for (int64_t i = 0; row != noted && i < count * blocks; ++i)
      take_notes<type>(x[row * blocks + i], notes + i * note_words<type>());
    noted = row, laid = -1;
    const int64_t panel_bytes = f.panel_bytes(weight.cols);
#if defined(WEFT_ISA_neon_dot)
    std::byte* laid_panel = worker.scratch + kScratchBytes / 2;
    const bool lay = count >= kFewestLaid && 4 * blocks * Laid<type>::bytes <= int64_t{kScratchBytes / 2} &&
                     count * blocks * note_words<type>() * 4 <= int64_t{kScratchBytes / 2};
    for (; lay && panel < panel_end; ++panel) {
      const std::byte* codes = w + panel * panel_bytes;
      lay_panel<type>(codes, codes + f.code_bytes(weight.cols), blocks, laid_panel);
      rows_laid(NotedRows<type>{x + row * blocks, notes, blocks, note_words<type>()}, count, laid_panel,
                y + row * columns + panel * 16, columns, columns - panel * 16);
    }
#endif
    for (; panel < panel_end; ++panel) {
      const std::byte* codes = w + panel * panel_bytes;
      const Strip<type> strip{x + row * blocks, notes, codes, codes + f.code_bytes(weight.cols), blocks};
      tile_rows(strip, ahead, count, y + row * columns + panel * 16, columns, columns - panel * 16);
    }
  }

  // Few rows: one pass over W.
  void read_once() {
    const Shares shares(parts(columns, 16), worker.count);
    Shares::Cut cut = shares.cut(worker.next(shares.count));
    for (ahead.start(w, cut); cut.begin < shares.panels;) {
      const Shares::Cut following = shares.cut(worker.next(shares.count));
      ahead.follow(following);
      multiply(0, rows, cut.begin, cut.end);
      finish(epilogue, y, columns, 0, rows, cut.begin * 16, smaller(columns, cut.end * 16));
      cut = following;
    }
  }

#if defined(WEFT_ISA_amx)
  // A few tiles of rows through the matrix unit, R rows in each: a pass over W for every tile.
  template <int R>
  void read_tiled() {
    using T = Tiled<type>;
    const Shares shares(parts(columns, 16), worker.count);
    shape_tiles<type>(R);
    for (bool first = true;; first = false) {
      const Shares::Cut cut = shares.cut(worker.next(shares.count));
      if (cut.begin == shares.panels) return;
      if (first) lay_rows<type>(x, rows, blocks, 0, blocks, blocks, worker.scratch + T::x_at);
      for (int64_t panel = cut.begin; panel < cut.end; ++panel)
        for (int64_t row = 0; row < rows; row += kTileRows)
          tile_panel<type, R>(worker.scratch + T::x_at + row / kTileRows * blocks * T::x_bytes,
                              w + panel * f.panel_bytes(weight.cols), weight.cols, worker.scratch,
                              y + row * columns + panel * 16, columns, rows - row, smaller(16, columns - panel * 16));
      finish(epilogue, y, columns, 0, rows, cut.begin * 16, smaller(columns, cut.end * 16));
    }
  }
#endif

  void run() {
    const int64_t note_bytes = blocks * larger(1, note_words<type>()) * 4;
    if (!weight.stack && rows <= kFewRows && rows * note_bytes <= int64_t{kScratchBytes}) return read_once();
    int64_t tile = kRows, most = smaller(kRowStep, int64_t{kScratchBytes} / note_bytes);
    if (most == 0) __builtin_trap();  // rows of millions of columns: refused when the program was bound
#if defined(WEFT_ISA_amx)
    const RowStore<type> store(blocks);
    if constexpr (f.subs == 0)
      if (!weight.stack && rows >= kFewestTiled && rows <= kMostTiled && parts(rows, kTileRows) * blocks <= Tiled<type>::room)
        return rows <= 12 ? read_tiled<12>() : read_tiled<16>();
    if (rows_for_tiles<type>(rows)) {
      shape_tiles<type>();
      tile = kTileRows, most = store.rows;
    }
#endif
    const Pieces pieces(call, weight, tile, most, kPanelStep, 4, worker.count);
    for (int64_t task; (task = worker.next(pieces.count())) < pieces.count();) {
      const Piece piece = pieces.at(task);
      const int64_t panel = piece.panel, panel_end = piece.panel_end, row = piece.row;
      int64_t count = piece.row_end - row, tiled = 0;
      if (!count) continue;
      w = matrix_of(weight, piece);
#if defined(WEFT_ISA_amx)
      if ((tiled = rows_for_tiles<type>(count))) {
        multiply_rows<type>(store, x + row * blocks, tiled, laid == row, w, weight.cols, columns, panel, panel_end,
                            worker.scratch, y + row * columns);
        laid = row, noted = -1;
      }
#endif
      if (tiled < count) {
        ahead.start(w, {panel, panel_end});
        multiply(row + tiled, count - tiled, panel, panel_end);
      }
      finish(epilogue.of(piece.matrix, columns), y, columns, row, row + count, panel * 16, smaller(columns, panel_end * 16));
    }
  }
};

KERNEL(matmul_q) {
  switch (call.in[1].weight->dtype) {
#define X(name) \
  case DType::name: return Product<DType::name>(call, worker).run();
    WEFT_PACKED_TYPES(X)
#undef X
    default: __builtin_trap();  // verified when the program was bound
  }
}

}  // namespace weft::ISA
