// matmul_tiles: matmul_q through the matrix unit (AMX), 16 rows of x and one panel of W at a time. Its sums are exact
// integers, so the bits are those of every other level.
//
//   32-wide types   one product of 32 columns per block: codes as signed bytes
//   K types         scale * code = 128 * high + low, two planes of signed bytes over the whole super-block, so that the
//                   sub-blocks cost nothing: sum = 128 * (x . high) + x . low
//
// Rows of x and panels of W are rearranged a chunk of columns at a time, so that a panel or two stay in the first-level
// cache while the rows are read. The matrix unit, its stores and the float chain after them share a port and gain nothing
// from being interleaved: they take turns, a few blocks each.
#pragma once
#include "kernels/matmul_a8.h"
#include "kernels/matmul_codes.h"
#include "kernels/matmul_epilogue.h"
#include "simd/tiles.h"

namespace weft::ISA {

constexpr int kTileRows = 16;
constexpr int16_t ones[2] = {1, 1};

// Offsets are in bytes.
template <DType type>
struct Tiled {
  static constexpr Format f = format_of(type);
  static constexpr int step = f.subs ? 64 : 32;    // columns of one instruction
  static constexpr int planes = f.subs ? 2 : 1;
  static constexpr int blocks = f.subs ? 2 : 24;   // of a chunk
  static constexpr int panels = f.subs ? 2 : 1;    // at once
  static constexpr int group = f.subs ? 1 : 6;     // blocks a turn
  static constexpr int mins = !f.mins ? 0 : f.subs ? f.subs / 2 : 1;  // vectors of minima, of W and of x

  // A block of 16 rows of x: codes [block / step][16][step], d [16], and the factors of the minima: d times the
  // sum of the codes [16], or the sums of the sub-blocks' codes as pairs [subs / 2][16][2].
  static constexpr int x_d = f.block * kTileRows, x_sums = x_d + 64, x_bytes = x_sums + mins * 64;
  // A block of a panel: [block / step][planes][step / 4][64], d [16], the minima [16] or [subs / 2][16][2], -dmin [16].
  static constexpr int w_d = f.block * kPanelRows * planes, w_mins = w_d + 64, w_low = w_mins + mins * 64;
  static constexpr int w_bytes = w_low + (f.subs && f.mins ? 64 : 0);
  static constexpr int sums = planes * 256;  // numbers a block

  // The scratch: sums, a chunk of the panels, then as many blocks of 16 rows of x as fit.
  static constexpr int64_t w_at = group * sums * 4, x_at = w_at + panels * blocks * w_bytes;
  static constexpr int64_t room = (static_cast<int64_t>(kScratchBytes) - x_at) / x_bytes;
  static_assert(room >= 16 * blocks);
};
constexpr int64_t kMostTileRows = 256;  // a task's

// How the rows of x are held: whole, if 64 of them fit, or a chunk at a time.
template <DType type>
struct RowStore {
  int64_t chunk, held, rows;  // blocks of a chunk, blocks of a row that are held at once, rows of a task

  explicit RowStore(int64_t blocks) {
    using T = Tiled<type>;
    chunk = parts(blocks, parts(blocks, T::blocks));
    held = 4 * blocks <= T::room ? blocks : chunk;
    rows = smaller(kMostTileRows, T::room / held * kTileRows);
  }
};

// tmm0 and tmm1 are sums, tmm4 holds rows of x, tmm6 and tmm7 columns of W.
template <DType type>
WEFT_INLINE void shape_tiles(int rows = kTileRows) {
  constexpr int columns = Tiled<type>::step;
  TileShapes shapes;
  for (int i : {0, 1}) shapes.bytes[i] = 64, shapes.rows[i] = static_cast<uint8_t>(rows);
  shapes.bytes[4] = columns, shapes.rows[4] = static_cast<uint8_t>(rows);
  for (int i : {6, 7}) shapes.bytes[i] = 64, shapes.rows[i] = columns / 4;
  _tile_loadconfig(&shapes);
}

// scale * (code - offset) of one group, split into planes 64 bytes wide.
template <DType type>
WEFT_INLINE void split_group(u8x64 code, __m512i scale, int8_t* low, int8_t* high) {
  const __m512i offset = _mm512_set1_epi16(format_of(type).offset);
  const __m512i even = _mm512_sub_epi16(_mm512_and_si512(code.v, _mm512_set1_epi16(255)), offset);
  const __m512i odd = _mm512_sub_epi16(_mm512_srli_epi16(code.v, 8), offset);
  const __m512i a = _mm512_mullo_epi16(even, scale), b = _mm512_mullo_epi16(odd, scale);
  const __m512i bits = _mm512_or_si512(_mm512_and_si512(a, _mm512_set1_epi16(127)),
                                       _mm512_slli_epi16(_mm512_and_si512(b, _mm512_set1_epi16(127)), 8));
  // a >> 7 in the low byte, b >> 7 in the high one: bits 7 to 14 of each
  const __m512i top = _mm512_mask_blend_epi8(0xAAAAAAAAAAAAAAAA, _mm512_srai_epi16(a, 7), _mm512_slli_epi16(b, 1));
  _mm512_store_si512(low, bits);
  _mm512_store_si512(high, top);
}

// One block of a panel. Prefetches one that is laid out later, `codes_ahead` and `headers_ahead` bytes on.
template <DType type>
WEFT_INLINE void lay_panel_block(const std::byte* codes, const std::byte* header, int64_t codes_ahead, int64_t headers_ahead,
                                 std::byte* out) {
  using T = Tiled<type>;
  constexpr Format f = T::f;
  auto* planes = reinterpret_cast<int8_t*>(out);
  for (int i = 0; i < f.chunks() * f.chunk_bytes(); i += 64) __builtin_prefetch(codes + codes_ahead + i);
  for (int i = 0; i < f.header_bytes(); i += 64) __builtin_prefetch(header + headers_ahead + i);
  for (int chunk = 0; chunk < f.chunks(); ++chunk) {
    u8x64 groups[8];
    unpack<type>(codes + chunk * f.chunk_bytes(), groups);
    for (int g = 0; g < 8; ++g) {
      if constexpr (f.subs == 0) {
        _mm512_store_si512(planes + g * 64, _mm512_sub_epi8(groups[g].v, _mm512_set1_epi8(static_cast<char>(f.offset))));
      } else {
        const int sub = (chunk * 32 + g * 4) / (256 / f.subs);
        const __m512i both = scale_pairs<type>(header, sub / 2).v;
        const __m512i wide = sub % 2 ? _mm512_srli_epi32(both, 16) : _mm512_and_si512(both, _mm512_set1_epi32(0xFFFF));
        int8_t* low = planes + chunk / 2 * 2048 + chunk % 2 * 512 + g * 64;
        split_group<type>(groups[g], _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16)), low, low + 1024);
      }
    }
  }
  const auto put = [&](int at, f32x16 v) { store(reinterpret_cast<float*>(out + at), v); };
  put(T::w_d, half_row<type>(header, 0));
  if constexpr (f.mins && f.subs == 0) put(T::w_mins, half_row<type>(header, 1));
  if constexpr (f.mins && f.subs) {
    put(T::w_low, zero() - half_row<type>(header, 1));
    for (int j = 0; j < T::mins; ++j) _mm512_store_si512(out + T::w_mins + j * 64, min_pairs<type>(header, j).v);
  }
}

// One block of `rows` rows of x, `stride` blocks apart; the tile's other rows are zero.
template <DType type>
WEFT_INLINE void lay_row_block(const A8<format_of(type).block>* x, int64_t stride, int64_t rows, std::byte* out) {
  using T = Tiled<type>;
  constexpr Format f = T::f;
  static constexpr A8<f.block> nothing = {};
  auto* d = reinterpret_cast<float*>(out + T::x_d);
  auto* sums = reinterpret_cast<int32_t*>(out + T::x_sums);  // [mins][16], pairs of int16
  for (int64_t r = 0; r < kTileRows; ++r) {
    const A8<f.block>& from = r < rows ? x[r * stride] : nothing;
    for (int at = 0; at < f.block; at += T::step) __builtin_memcpy(out + at * kTileRows + r * T::step, from.q + at, T::step);
    d[r] = from.d;
    if constexpr (f.mins && f.subs != 8)
      for (int j = 0; j < T::mins; ++j) sums[j * 16 + r] = four_bytes(from.sum + 2 * j);
    if constexpr (f.mins && f.subs == 8) {
      const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from.sum));
      const __m256i whole = _mm256_madd_epi16(halves, _mm256_set1_epi16(1));
      alignas(16) int32_t words[4];
      _mm_store_si128(reinterpret_cast<__m128i*>(words), _mm256_cvtepi32_epi16(whole));
      for (int j = 0; j < 4; ++j) sums[j * 16 + r] = words[j];
    }
  }
  if constexpr (f.mins && f.subs == 0) {  // d times the sum of all
    const i32x16 total = dot_pairs(zero_i(), pairs{_mm512_load_si512(sums)}, ones);
    store(reinterpret_cast<float*>(sums), load(d) * to_float(total));
  }
}

// Blocks [first, first + count) of `rows` rows of x, each of `stride` blocks, to tiles of `held` blocks; missing rows of the
// last tile are zero.
template <DType type>
static void lay_rows(const A8<format_of(type).block>* x, int64_t rows, int64_t stride, int64_t first, int64_t count,
                     int64_t held, std::byte* out) {
  using T = Tiled<type>;
  for (int64_t row = 0; row < rows; row += kTileRows, out += held * T::x_bytes)
    for (int64_t b = 0; b < count; ++b)
      lay_row_block<type>(x + row * stride + first + b, stride, rows - row, out + b * T::x_bytes);
}

// The sums of one block of W for 16 rows of x.
template <DType type>
WEFT_INLINE void multiply_block(const std::byte* x, const std::byte* w, int32_t* sums) {
  using T = Tiled<type>;
  _tile_zero(0);
  if constexpr (T::planes == 1) {
    _tile_loadd(4, x, T::step);
    _tile_loadd(6, w, 64);
    _tile_dpbssd(0, 4, 6);
  } else {
    _tile_zero(1);
    for (int step = 0; step < 4; ++step) {
      _tile_loadd(4, x + step * 1024, 64);
      _tile_loadd(6, w + step * 2048, 64);
      _tile_dpbssd(0, 4, 6);
      _tile_loadd(7, w + step * 2048 + 1024, 64);
      _tile_dpbssd(1, 4, 7);
    }
    _tile_stored(1, sums + 256, 64);
  }
  _tile_stored(0, sums, 64);
}

// The chain of R rows over one block whose integers are known.
template <DType type, int R>
WEFT_INLINE void add_sums(const std::byte* x, const std::byte* w, const int32_t* sums, f32x16* acc) {
  using T = Tiled<type>;
  const auto vector = [&](int at) { return load(reinterpret_cast<const float*>(w + at)); };
  const auto* d = reinterpret_cast<const float*>(x + T::x_d);
  const auto* under = reinterpret_cast<const int16_t*>(x + T::x_sums);
  const f32x16 scale = vector(T::w_d);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    i32x16 total{_mm512_load_si512(sums + r * 16)};
    if constexpr (T::planes == 2) total = total + i32x16{_mm512_slli_epi32(_mm512_load_si512(sums + 256 + r * 16), 7)};
    acc[r] = fused(scale * splat(d[r]), to_float(total), acc[r]);
    if constexpr (T::f.mins && T::f.subs == 0) {
      acc[r] = fused(vector(T::w_mins), splat(reinterpret_cast<const float*>(under)[r]), acc[r]);
    } else if constexpr (T::f.mins) {
      i32x16 low = zero_i();
      for (int j = 0; j < T::mins; ++j)
        low = dot_pairs(low, pairs{_mm512_load_si512(w + T::w_mins + j * 64)}, under + j * 32 + r * 2);
      acc[r] = fused(vector(T::w_low) * splat(d[r]), to_float(low), acc[r]);
    }
  }
}

// `count` blocks of 16 rows of x and of a panel; y is added to unless this is its `start`.
template <DType type>
static void tile_chunk(const std::byte* x, const std::byte* w, int64_t count, int32_t* sums, bool start, float* y,
                       int64_t y_stride, int64_t rows, int64_t columns) {
  using T = Tiled<type>;
  f32x16 acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) acc[r] = start || r >= rows ? zero() : load_n(y + r * y_stride, columns);
  for (int64_t b = 0; b < count; b += T::group) {
    const int64_t turn = smaller(T::group, count - b);
    for (int64_t i = 0; i < turn; ++i)
      multiply_block<type>(x + (b + i) * T::x_bytes, w + (b + i) * T::w_bytes, sums + i * T::sums);
    for (int64_t i = 0; i < turn; ++i)
      add_sums<type, kTileRows>(x + (b + i) * T::x_bytes, w + (b + i) * T::w_bytes, sums + i * T::sums, acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
    if (r < rows) store_n(y + r * y_stride, acc[r], columns);
}

// One panel for at most R rows of x, W laid out a turn of blocks at a time, just before it is used: with so few rows the
// pass over W takes as long as the products, and what is laid out in between stays in the first-level cache.
template <DType type, int R>
static void tile_panel(const std::byte* x, const std::byte* codes, int64_t columns_of_x, std::byte* scratch, float* y,
                       int64_t y_stride, int64_t rows, int64_t columns) {
  using T = Tiled<type>;
  constexpr Format f = T::f;
  constexpr int64_t code_bytes = f.chunks() * f.chunk_bytes(), far = (4096 + code_bytes - 1) / code_bytes;
  const int64_t blocks = columns_of_x / f.block, to_next = f.panel_bytes(columns_of_x);
  const std::byte* headers = codes + f.code_bytes(columns_of_x);
  auto* sums = reinterpret_cast<int32_t*>(scratch);
  f32x16 acc[R];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int64_t b = 0; b < blocks; b += T::group) {
    const int64_t turn = smaller(T::group, blocks - b);
    for (int64_t i = b; i < b + turn; ++i) {
      const int64_t later = far < blocks - i ? far : far - blocks, skip = far < blocks - i ? 0 : to_next;
      lay_panel_block<type>(codes + i * code_bytes, headers + i * f.header_bytes(), skip + later * code_bytes,
                            skip + later * f.header_bytes(), scratch + T::w_at + (i - b) * T::w_bytes);
    }
    settle_stores();
    for (int64_t i = 0; i < turn; ++i)
      multiply_block<type>(x + (b + i) * T::x_bytes, scratch + T::w_at + i * T::w_bytes, sums + i * T::sums);
    for (int64_t i = 0; i < turn; ++i)
      add_sums<type, R>(x + (b + i) * T::x_bytes, scratch + T::w_at + i * T::w_bytes, sums + i * T::sums, acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
    if (r < rows) store_n(y + r * y_stride, acc[r], columns);
}

// y [rows, stride] for the panels [panel, panel_end) of W; x and y are the first row's. `laid` says that the scratch still
// holds these rows, where they are held whole.
template <DType type>
static void multiply_rows(const RowStore<type>& store, const A8<format_of(type).block>* x, int64_t rows, bool laid,
                          const std::byte* w, int64_t cols, int64_t columns, int64_t panel, int64_t panel_end,
                          std::byte* scratch, float* y) {
  using T = Tiled<type>;
  constexpr Format f = T::f;
  const int64_t blocks = cols / f.block, stride = columns, ahead = T::panels * f.panel_bytes(cols);
  auto* sums = reinterpret_cast<int32_t*>(scratch);
  for (int64_t b = 0; b < blocks; b += store.chunk) {
    const int64_t count = smaller(store.chunk, blocks - b);
    const bool whole = store.held == blocks;
    if (whole ? b == 0 && !laid : true)
      lay_rows<type>(x, rows, blocks, b, whole ? blocks : count, store.held, scratch + T::x_at);
    for (int64_t first = panel; first < panel_end; first += T::panels) {
      const int64_t together = smaller(T::panels, panel_end - first);
      for (int64_t p = 0; p < together; ++p) {
        const std::byte* codes = w + (first + p) * f.panel_bytes(cols);
        const std::byte* headers = codes + f.code_bytes(cols);
        for (int64_t i = 0; i < count; ++i)
          lay_panel_block<type>(codes + (b + i) * f.chunks() * f.chunk_bytes(), headers + (b + i) * f.header_bytes(), ahead,
                                ahead, scratch + T::w_at + (p * T::blocks + i) * T::w_bytes);
      }
      settle_stores();
      const std::byte* at = scratch + T::x_at + (whole ? b * T::x_bytes : 0);
      for (int64_t row = 0; row < rows; row += kTileRows, at += store.held * T::x_bytes)
        for (int64_t p = 0; p < together; ++p) {
          const int64_t column = (first + p) * 16;
          tile_chunk<type>(at, scratch + T::w_at + p * T::blocks * T::w_bytes, count, sums, b == 0,
                           y + row * stride + column, stride, rows - row, smaller(16, stride - column));
        }
    }
  }
}

}  // namespace weft::ISA
