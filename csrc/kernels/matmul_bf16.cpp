// matmul_bf16: y = act(x Wᵀ + b) with x and W in bfloat16 and float32 sums.
//
// Meaning  weft/ops/matmul.py
// Layout   x bfloat16 [M, K], K a multiple of 32; y float32 or bfloat16 [M, N]; W bfloat16 in pairs (pack/pairs.h).
//          Split: x, W and a bfloat16 y have twice the columns, rounded values and then the remainders
// Method   per 32 columns two chains, over the even and over the odd ones, are added up and then added to the element.
//          Products of bfloat16 are exact in float32, so this is what an instruction of the matrix unit does, and every
//          level gives the same bits (subnormal sums apart, which the unit makes zero). Split: per 32 columns three
//          products, values with values, values with remainders, remainders with values: 16 bits of every factor count
// Bound    the matrix unit and the second-level cache, or fma throughput; memory, one pass over W, with few rows
#include "core/weight.h"
#include "kernels/matmul_bf16_rows.h"
#if defined(WEFT_ISA_amx)
#include "simd/tiles.h"
#endif

namespace weft::ISA {

constexpr int64_t kMaxPanels = 1 << 20;  // as many as there are
constexpr int64_t kMaxDepth = 1 << 14;   // everything a task keeps in scratch fits

#if defined(WEFT_ISA_amx)

constexpr int64_t kTaskRows = 32;
constexpr int64_t kFewRows = 2;             // bound by memory, which vectors read faster than tiles
constexpr int64_t kFewestPanels = 4;        // of a task in a team
constexpr int64_t kBlock = 1024;            // sums of 32 rows and 2 panels
constexpr int64_t kGroupBytes = 320 << 10;  // of W, read again and again from the second-level cache
constexpr int64_t kRowsBytes = 768 << 10;   // of x that stays there too
WEFT_INLINE int64_t max_rows(int64_t x_row) { return larger(128, smaller(1024, kRowsBytes / (2 * x_row) / 32 * 32)); }

// Up to 32 rows and 2 panels: their addresses, the address of their sums, and what is prefetched meanwhile.
struct Block {
  const uint16_t *x, *w;
  float* sums;  // [row / 16][panel][16][16]
  const char* ahead;
  int64_t ahead_lines;  // at each step
};

// Sums that wait for bias and activation; rows is 0 where none do.
struct Pending {
  const float* sums = nullptr;
  int64_t row = 0, rows = 0, panel = 0, panels = 0;
};

static void finish(const Product& a, const Epilogue& epilogue, const Pending& pending) {
  for (int64_t r = 0; r < pending.rows; ++r)
    for (int64_t p = 0; p < pending.panels; ++p)
      put(a, epilogue, pending.row + r, (pending.panel + p) * 16,
          load(pending.sums + (r / 16 * pending.panels + p) * 256 + r % 16 * 16));
}

WEFT_INLINE void store_rounded_pair(uint16_t* to, f32x16 first, f32x16 second) {
  const __m512bh both = _mm512_cvtne2ps_pbh(second.v, first.v);
  _mm512_storeu_si512(to, reinterpret_cast<const __m512i&>(both));
}

// The same for two whole panels, a row at a time, with a known activation and type of result. It copies what it needs:
// the compiler would have to reload it through a pointer after every store.
template <Activation kind, bool narrow, bool split>
struct Finish {
  const float* sums;
  float* y;
  uint16_t* narrow_y;
  int64_t rows, columns, narrow_row, done = 0;
  f32x16 bias[2] = {zero(), zero()};

  WEFT_INLINE Finish(const Product& a, const Epilogue& epilogue, const Pending& pending)
      : sums(pending.sums), rows(pending.rows), columns(a.columns), narrow_row(a.narrow_row()) {
    const int64_t column = pending.panel * 16;
    y = a.y + pending.row * columns + column;
    narrow_y = a.narrow_y + pending.row * narrow_row + column;
    if (rows && epilogue.bias) bias[0] = load(epilogue.bias + column), bias[1] = load(epilogue.bias + column + 16);
  }
  WEFT_INLINE void some(int64_t count) {
    for (const int64_t end = smaller(rows, done + count); done < end; ++done) one();
  }
  WEFT_INLINE void one() const {
    const float* from = sums + done / 16 * 512 + done % 16 * 16;
    f32x16 first = load(from) + bias[0], second = load(from + 256) + bias[1];
    first = split ? activate<kind>(first) : activate_coarse<kind>(first);
    second = split ? activate<kind>(second) : activate_coarse<kind>(second);
    if constexpr (!narrow) {
      store(y + done * columns, first);
      store(y + done * columns + 16, second);
      return;
    }
    uint16_t* to = narrow_y + done * narrow_row;
    store_rounded_pair(to, first, second);
    if constexpr (split) store_rounded_pair(to + columns, first - load_bf16(to), second - load_bf16(to + 16));
  }
};

template <int R, int P>
WEFT_INLINE void zero_sums() {
  _tile_zero(0);
  if constexpr (P > 1) _tile_zero(1);
  if constexpr (R > 1) _tile_zero(2);
  if constexpr (R > 1 && P > 1) _tile_zero(3);
}
template <int R, int P>
WEFT_INLINE void store_sums(float* sums) {
  _tile_stored(0, sums, 64);
  if constexpr (P > 1) _tile_stored(1, sums + 256, 64);
  if constexpr (R > 1) _tile_stored(2, sums + P * 256, 64);
  if constexpr (R > 1 && P > 1) _tile_stored(3, sums + 3 * 256, 64);
}

// Where the factors of the i-th step begin. Split: values, then remainders of W, then remainders of x, of the same 32 columns.
template <bool split>
WEFT_INLINE int64_t in_x(int64_t depth, int64_t i) {
  return split ? i / 3 * kPairColumns + (i % 3 == 2 ? depth : 0) : i * kPairColumns;
}
template <bool split>
WEFT_INLINE int64_t in_w(int64_t depth, int64_t i) {
  return (split ? i / 3 * kPairColumns + (i % 3 == 1 ? depth : 0) : i * kPairColumns) * 16;
}

// Sums of 16 R rows and 16 P columns: tmm0 to tmm3; tmm4 and tmm5 hold rows of x, tmm6 and tmm7 panels of W. W is
// loaded past the first-level cache (`stream`), where rows of x and sums are to stay.
template <int R, int P, bool split>
static void multiply(const Product& a, const Block& block, int64_t steps) {
  const int64_t row = a.x_row(), stride = row * 2;
  zero_sums<R, P>();
  for (int64_t i = 0; i < steps; ++i) {
    const uint16_t *x = block.x + in_x<split>(a.depth, i), *w = block.w + in_w<split>(a.depth, i);
    _tile_loadd(4, x, stride);
    _tile_stream_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (P > 1) _tile_stream_loadd(7, w + row * 16, 64);
    if constexpr (P > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) _tile_loadd(5, x + 16 * row, stride);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1 && P > 1) _tile_dpbf16ps(3, 5, 7);
  }
  store_sums<R, P>(block.sums);
}

// The same of 2 panels, while the vector units finish the block before. An operand is loaded for the next step as soon as
// its last product has begun, and steps take the products in opposite orders, so that there is one between load and use.
template <int R, Activation kind, bool narrow, bool split>
static void multiply_beside(const Product& a, const Epilogue& epilogue, const Block& block, int64_t steps,
                            const Pending& pending) {
  const int64_t row = a.x_row(), depth = a.depth, stride = row * 2, share = parts(32, steps), lines = block.ahead_lines;
  const uint16_t *x0 = block.x, *x1 = x0 + 16 * row, *w0 = block.w, *w1 = w0 + 16 * row;
  const char* ahead = block.ahead;
  Finish<kind, narrow, split> finish(a, epilogue, pending);
  const auto beside = [&] {
    finish.some(share);
    for (int64_t i = 0; i < lines; ++i, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T1);
  };
  zero_sums<R, 2>();
  _tile_loadd(4, x0, stride);
  _tile_stream_loadd(6, w0, 64);
  _tile_stream_loadd(7, w1, 64);
  if constexpr (R > 1) _tile_loadd(5, x1, stride);
  int64_t i = 1;
  for (; i + 1 < steps; i += 2) {
    int64_t x = in_x<split>(depth, i), w = in_w<split>(depth, i);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(4, x0 + x, stride);
    if constexpr (R > 1) _tile_dpbf16ps(3, 5, 7);
    _tile_stream_loadd(7, w1 + w, 64);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1) _tile_loadd(5, x1 + x, stride);
    _tile_stream_loadd(6, w0 + w, 64);
    beside();
    x = in_x<split>(depth, i + 1), w = in_w<split>(depth, i + 1);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(4, x0 + x, stride);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(6, w0 + w, 64);
    if constexpr (R > 1) _tile_dpbf16ps(3, 5, 7);
    if constexpr (R > 1) _tile_loadd(5, x1 + x, stride);
    _tile_stream_loadd(7, w1 + w, 64);
    beside();
  }
  for (; i <= steps; ++i) {  // one or two left
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (R > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1) _tile_dpbf16ps(3, 5, 7);
    beside();
    if (i == steps) break;
    const int64_t x = in_x<split>(depth, i), w = in_w<split>(depth, i);
    _tile_loadd(4, x0 + x, stride);
    _tile_stream_loadd(6, w0 + w, 64);
    _tile_stream_loadd(7, w1 + w, 64);
    if constexpr (R > 1) _tile_loadd(5, x1 + x, stride);
  }
  store_sums<R, 2>(block.sums);
}

using Beside = void (*)(const Product&, const Epilogue&, const Block&, int64_t, const Pending&);
template <int R, bool split>
static Beside beside_for(const Product& a, const Epilogue& epilogue) {
  Beside chosen = nullptr;
  with_activation(epilogue.activation, [&](auto kind) {
    chosen = a.y ? multiply_beside<R, kind(), false, split> : multiply_beside<R, kind(), true, split>;
  });
  return chosen;
}

// One task: rows [row, row_end) times panels [panel, panel_end), in blocks of up to 32 rows and 2 panels.
template <bool split>
struct Task {
  const Product& a;
  const Epilogue& epilogue;
  int64_t row, row_end, panel, panel_end, steps;
  float* sums;       // of two blocks
  uint16_t* copied;  // the last rows, which fill no tile, with zeros after them
  Beside beside[2];
  Pending pending;
  int64_t turn = 0;

  WEFT_INLINE Task(const Product& a, const Epilogue& epilogue, const Piece& piece, std::byte* scratch)
      : a(a), epilogue(epilogue), row(piece.row), row_end(piece.row_end), panel(piece.panel),
        panel_end(piece.panel_end), steps(a.depth / kPairColumns * (split ? 3 : 1)),
        sums(reinterpret_cast<float*>(scratch)), copied(reinterpret_cast<uint16_t*>(scratch + 2 * kBlock * sizeof(float))),
        beside{beside_for<1, split>(a, epilogue), beside_for<2, split>(a, epilogue)} {}

  // The block of `rows` rows, 16 or 32, from `r` on, of which some may be missing, and of up to two panels.
  void multiply_block(const Block& block, int64_t r, int64_t rows, int64_t p) {
    const int64_t panels = smaller(2, panel_end - p);
    const auto whole = [&](int64_t first, int64_t count) { return count == 2 && (first + 2) * 16 <= a.columns; };
    if (whole(p, panels) && (!pending.rows || whole(pending.panel, pending.panels))) {
      beside[rows / 16 - 1](a, epilogue, block, steps, pending);
    } else {
      finish(a, epilogue, pending);
      if (panels == 2) rows == 32 ? multiply<2, 2, split>(a, block, steps) : multiply<1, 2, split>(a, block, steps);
      else rows == 32 ? multiply<2, 1, split>(a, block, steps) : multiply<1, 1, split>(a, block, steps);
    }
    pending = {block.sums, r, smaller(rows, row_end - r), p, panels};
  }

  // Rows from `first` on, at most 32: copied, as many as fill tiles.
  void copy_rows(int64_t first) const {
    const int64_t x_row = a.x_row(), there = (row_end - first) * x_row;
    __builtin_memcpy(copied, a.x + first * x_row, static_cast<size_t>(there) * 2);
    for (int64_t i = there; i < parts(row_end - first, 16) * 16 * x_row; ++i) copied[i] = 0;
    settle_stores();
  }

  // Rows of x stay in the first-level cache, if they fit, while a group of panels is read that stays in the second for
  // the next rows. The next group is prefetched, unless rows are so few that memory is busy anyway.
  void multiply_all() {
    const int64_t x_row = a.x_row(), group = larger(2, kGroupBytes / (32 * x_row) / 2 * 2);
    const int64_t tile = (32 * x_row + 4 * kBlock) * 2 <= int64_t{kScratchBytes} ? 32 : 16;
    const int64_t whole_end = row + (row_end - row) / tile * tile;
    copy_rows(whole_end);
    for (int64_t first = panel, last; first < panel_end; first = last) {
      last = smaller(first + group, panel_end);
      const int64_t next_lines = row_end - row < 128 ? 0 : (smaller(last + group, panel_end) - last) * x_row / 2;
      const int64_t blocks = parts(row_end - row, 32) * parts(last - first, 2), lines = parts(next_lines, blocks * steps);
      const char* ahead = reinterpret_cast<const char*>(a.w + last * 16 * x_row);
      const char* ahead_end = ahead + next_lines * 64;
      for (int64_t r = row, rows; r < row_end; r += rows) {
        rows = r + 32 <= whole_end || (r >= whole_end && r + 16 < row_end) ? 32 : 16;
        for (int64_t p = first; p < last; p += 2, ahead += lines * steps * 64)
          multiply_block({r < whole_end ? a.x + r * x_row : copied, a.w + p * 16 * x_row, sums + turn++ % 2 * kBlock,
                          ahead, ahead < ahead_end ? lines : 0}, r, rows, p);
      }
    }
    finish(a, epilogue, pending);
  }
};

template <bool split>
static void multiply_tiles(const Product& a, const Epilogue& epilogue, const Piece& piece, std::byte* scratch) {
  Task<split>(a, epilogue, piece, scratch).multiply_all();
}

#endif

KERNEL(matmul_bf16) {
  const Weight& weight = *call.in[1].weight;
  if (weight.layout != Layout::pairs) __builtin_trap();  // the binding makes no other for this op
  const bool rounded = call.flag("rounded"), split = call.flag("split");
  Product a{call.in[0].as<uint16_t>(), nullptr, rounded ? nullptr : call.out[0].as<float>(),
            rounded ? call.out[0].as<uint16_t>() : nullptr, split ? weight.cols / 2 : weight.cols, weight.rows, split};
  if (a.x_row() > kMaxDepth) __builtin_trap();  // the op's shape rule refuses it
  const Epilogue epilogue(call);
  const int64_t fewest = worker.count > 1 ? kFewestPanels : kMaxPanels;  // one worker shares with no other
  const Pieces pieces(call, weight, kTaskRows, max_rows(a.x_row()), kMaxPanels, fewest, worker.count);
#if defined(WEFT_ISA_amx)
  shape_whole_tiles();
#endif
  for (int64_t task; (task = worker.next(pieces.count())) < pieces.count();) {
    const Piece piece = pieces.at(task);
    if (piece.row == piece.row_end) continue;
    a.w = reinterpret_cast<const uint16_t*>(matrix_of(weight, piece));
    const Epilogue own = epilogue.of(piece.matrix, a.columns);
#if defined(WEFT_ISA_amx)
    const int64_t few = weight.stack ? piece.row_end - piece.row : call.in[0].rows();
    if (few > kFewRows) split ? multiply_tiles<true>(a, own, piece, worker.scratch) : multiply_tiles<false>(a, own, piece, worker.scratch);
    else
#endif
      multiply_rows(a, own, piece, worker.scratch);
  }
}

}  // namespace weft::ISA
