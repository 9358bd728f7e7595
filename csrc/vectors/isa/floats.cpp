// floats: sums over rows of f32, f16 and bf16, accumulated in float32.
//
// Layout   a query, contiguous; rows, contiguous in themselves, `stride` bytes apart
// Method   four sums of 16 lanes in turn, the tail to the fourth; ((0+1)+(2+3)), then the fixed tree of `sum`
// Bound    memory: every byte of a row is read once
#include "simd/simd.h"
#include "kernels/widen.h"
#include "vectors/isa/table.h"

namespace weft::ISA {
namespace {

constexpr int64_t kAheadBytes = 2048;
constexpr int64_t kChunk = 512;    // columns that are read twice, the second time from the first-level cache
constexpr int64_t kCopied = 6144;  // floats, half of the first-level cache

WEFT_INLINE f32x16 widen_n(const float* p, int64_t n) { return load_n(p, n); }
WEFT_INLINE f32x16 widen_n(const F16* p, int64_t n) { return load_f16_n(&p->bits, n); }
WEFT_INLINE f32x16 widen_n(const Bf16* p, int64_t n) { return load_bf16_n(&p->bits, n); }

// Asks for the `count` elements at p, which a later row has at this place: the hardware's own guesses end with a page.
template <size_t count, class B>
WEFT_INLINE void ask_for(const B* p) {
  const auto* line = reinterpret_cast<const std::byte*>(p);
  _Pragma("GCC unroll 4") for (size_t at = 0; at < count * sizeof(B); at += 64) __builtin_prefetch(line + at);
}

// Bytes from a row to the one that is asked for while it is read.
WEFT_INLINE int64_t ahead_of(int64_t stride) {
  const int64_t apart = stride < 0 ? -stride : stride;
  return apart ? (1 + kAheadBytes / apart) * stride : 0;
}
// The same where a row is read in one pass, one row at a time.
WEFT_INLINE int64_t ahead_in_one_pass(int64_t stride) {
#ifdef WEFT_ISA_neon
  constexpr int64_t near = 1024;  // Neoverse N1: 18.3 to 18.9 GB/s, a row ahead 15.9 to 18.5
  return stride < 0 ? -near : near;
#else
  return ahead_of(stride);
#endif
}

// `start` taken through op(a, b, sum) for every 16 elements of a and b; what lies `ahead` bytes after b is asked for. Of
// the four sums `together` are made in one pass, as many as fit the registers; then it is the others' turn, chunk by chunk.
template <int together, class Sum, class A, class B, class Op>
WEFT_INLINE Sum sums(const A* a, const B* b, int64_t size, Sum start, Op op, int64_t ahead = 0) {
  const B* later = reinterpret_cast<const B*>(reinterpret_cast<const std::byte*>(b) + ahead);
  const int64_t whole = size / 64 * 64, more = (size - whole) / 16;
  const int64_t chunk = together == 4 ? whole : kChunk;
  Sum s[4] = {start, start, start, start};
  for (int64_t begin = 0; begin < whole; begin += chunk) {
    const int64_t stop = begin + chunk < whole ? begin + chunk : whole;
    _Pragma("GCC unroll 4") for (int first = 0; first < 4; first += together) {
      Sum part[together];
      _Pragma("GCC unroll 4") for (int p = 0; p < together; ++p) part[p] = s[first + p];
      for (int64_t i = begin + first * 16; i < stop; i += 64) {
        if (ahead) ask_for<16 * together>(later + i);
        _Pragma("GCC unroll 4") for (int p = 0; p < together; ++p)
          part[p] = op(widen(a + i + p * 16), widen(b + i + p * 16), part[p]);
      }
      _Pragma("GCC unroll 4") for (int p = 0; p < together; ++p) s[first + p] = part[p];
    }
  }
  _Pragma("GCC unroll 4") for (int p = 0; p < 4; ++p) {
    const int64_t at = whole + p * 16, end = whole + more * 16;
    if (p < more) s[p] = op(widen(a + at), widen(b + at), s[p]);
    if (p == 3 && end < size) s[p] = op(widen_n(a + end, size - end), widen_n(b + end, size - end), s[p]);
  }
  return (s[0] + s[1]) + (s[2] + s[3]);
}

struct Product {
  WEFT_INLINE f32x16 operator()(f32x16 a, f32x16 b, f32x16 s) const { return fma(a, b, s); }
};
struct Squared {
  WEFT_INLINE f32x16 operator()(f32x16 a, f32x16 b, f32x16 s) const { return fma(a - b, a - b, s); }
};
struct Absolute {
  WEFT_INLINE f32x16 operator()(f32x16 a, f32x16 b, f32x16 s) const { return s + abs(a - b); }
};

template <class A, class B, class Op>
void each(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, float* out) {
  const A* a = static_cast<const A*>(query);
  const int64_t ahead = ahead_in_one_pass(stride);
  for (int64_t r = 0; r < n; ++r)
    out[r] = sum(sums<4>(a, reinterpret_cast<const B*>(rows + r * stride), size, zero(), Op{}, ahead));
}

template <class B>
void squares(const void*, const std::byte* rows, int64_t stride, int64_t n, int64_t size, float* out) {
  for (int64_t r = 0; r < n; ++r) {
    const B* b = reinterpret_cast<const B*>(rows + r * stride);
    out[r] = sum(sums<4>(b, b, size, zero(), Product{}));
  }
}

// Two or three sums at once, of as many of the four parts as fit the registers.
#ifdef WEFT_ISA_avx512
constexpr int kPartsOfTwo = 4, kPartsOfThree = 4;
#else
constexpr int kPartsOfTwo = 2, kPartsOfThree = 1;
#endif
struct Two {
  f32x16 ab, bb;
  WEFT_INLINE Two operator+(Two o) const { return {ab + o.ab, bb + o.bb}; }
};
struct Three {
  f32x16 ab, aa, bb;
  WEFT_INLINE Three operator+(Three o) const { return {ab + o.ab, aa + o.aa, bb + o.bb}; }
};
template <class A, class B>
WEFT_INLINE void dot_and_square(const A* a, const B* b, int64_t size, int64_t ahead, float& ab, float& bb) {
  const auto both = [](f32x16 x, f32x16 y, Two s) WEFT_LAMBDA { return Two{fma(x, y, s.ab), fma(y, y, s.bb)}; };
  const Two all = sums<kPartsOfTwo>(a, b, size, Two{zero(), zero()}, both, ahead);
  ab = sum(all.ab), bb = sum(all.bb);
}
template <class B>
void three(const void* a, const void* b, int64_t size, float* out) {
  const auto each = [](f32x16 x, f32x16 y, Three s) WEFT_LAMBDA {
    return Three{fma(x, y, s.ab), fma(x, x, s.aa), fma(y, y, s.bb)};
  };
  const Three all = sums<kPartsOfThree>(static_cast<const B*>(a), static_cast<const B*>(b), size,
                                        Three{zero(), zero(), zero()}, each);
  out[0] = sum(all.ab), out[1] = sum(all.aa), out[2] = sum(all.bb);
}

template <class B>
void dot_squares(const float* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, float* out,
                 float* squares) {
  const int64_t ahead = ahead_of(stride);
  for (int64_t r = 0; r < n; ++r)
    dot_and_square(query, reinterpret_cast<const B*>(rows + r * stride), size, ahead, out[r], squares[r]);
}

// kQueries x kRows products at a time, each with the four sums of `sums`: 24 registers of avx512's 32. One query alone
// takes kAtOnce rows: several streams read memory faster than one.
#ifdef WEFT_ISA_avx512
constexpr int kQueries = 2, kRows = 3, kAtOnce = 4;
#define WEFT_KEEP(y) asm("" : "+v"(y.v))  // in a register: the compiler would load it again for every query
#else
constexpr int kQueries = 1, kRows = 1, kAtOnce = 1;
#define WEFT_KEEP(y)
#endif

template <class B, int queries, int n_rows>
WEFT_INLINE void tile(const float* a, int64_t query_stride, const std::byte* rows, int64_t stride, int64_t size,
                      float* out, int64_t out_stride, int64_t ahead) {
  f32x16 s[4][queries][n_rows];
  const auto step = [&](int part, auto left, auto right) WEFT_LAMBDA {
    f32x16 x[queries];
    _Pragma("GCC unroll 4") for (int q = 0; q < queries; ++q) x[q] = left(q);
    _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; ++r) {
      f32x16 y = right(r);
      WEFT_KEEP(y);
      _Pragma("GCC unroll 4") for (int q = 0; q < queries; ++q) s[part][q][r] = fma(x[q], y, s[part][q][r]);
    }
  };
  const auto whole = [&](int part, int64_t i) WEFT_LAMBDA {
    step(part, [&](int q) WEFT_LAMBDA { return load(a + q * query_stride + i); },
         [&](int r) WEFT_LAMBDA { return widen(reinterpret_cast<const B*>(rows + r * stride) + i); });
  };
  _Pragma("GCC unroll 4") for (int part = 0; part < 4; ++part)
    _Pragma("GCC unroll 4") for (int q = 0; q < queries; ++q)
      _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; ++r) s[part][q][r] = zero();
  int64_t i = 0;
  for (; i + 64 <= size; i += 64) {
    if (ahead) {
      _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; ++r)
        ask_for<64>(reinterpret_cast<const B*>(rows + r * stride + ahead) + i);
    }
    whole(0, i);
    whole(1, i + 16);
    whole(2, i + 32);
    whole(3, i + 48);
  }
  if (i + 16 <= size) whole(0, i), i += 16;
  if (i + 16 <= size) whole(1, i), i += 16;
  if (i + 16 <= size) whole(2, i), i += 16;
  if (i < size)
    step(3, [&](int q) WEFT_LAMBDA { return load_n(a + q * query_stride + i, size - i); },
         [&](int r) WEFT_LAMBDA { return widen_n(reinterpret_cast<const B*>(rows + r * stride) + i, size - i); });
  _Pragma("GCC unroll 4") for (int q = 0; q < queries; ++q)
    _Pragma("GCC unroll 4") for (int r = 0; r < n_rows; ++r)
      out[q * out_stride + r] = sum((s[0][q][r] + s[1][q][r]) + (s[2][q][r] + s[3][q][r]));
}

// One query against rows.
template <class B>
WEFT_INLINE void dot_one(const float* a, const std::byte* rows, int64_t stride, int64_t n, int64_t size, float* out,
                         int64_t ahead) {
  int64_t r = 0;
  for (; r + kAtOnce <= n; r += kAtOnce) tile<B, 1, kAtOnce>(a, 0, rows + r * stride, stride, size, out + r, 0, ahead);
  each<float, B, Product>(a, rows + r * stride, stride, n - r, size, out + r);
}

template <class B>
void widen_row(const void* from, float* to, int64_t size) {
  const B* b = static_cast<const B*>(from);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) store(to + i, widen(b + i));
  if (i < size) store_n(to + i, widen_n(b + i, size - i), size - i);
}

// Some queries against rows that are in the first-level cache.
template <class B>
WEFT_INLINE void dot_block(const float* queries, int64_t query_stride, int64_t n_queries, const std::byte* rows,
                           int64_t stride, int64_t n, int64_t size, float* out, int64_t out_stride) {
  int64_t q = 0;
  for (; q + kQueries <= n_queries; q += kQueries) {
    const float* a = queries + q * query_stride;
    float* to = out + q * out_stride;
    int64_t r = 0;
    for (; r + kRows <= n; r += kRows)
      tile<B, kQueries, kRows>(a, query_stride, rows + r * stride, stride, size, to + r, out_stride, 0);
    for (int i = 0; i < kQueries; ++i)
      each<float, B, Product>(a + i * query_stride, rows + r * stride, stride, n - r, size, to + i * out_stride + r);
  }
  for (; q < n_queries; ++q)
    dot_one<B>(queries + q * query_stride, rows, stride, n, size, out + q * out_stride, 0);
}

// Several: few rows at a time, as float32 in a copy that begins at a cache line: a load across two lines costs two.
template <class B>
void dot_many(const float* queries, int64_t query_stride, int64_t n_queries, const std::byte* rows, int64_t stride,
              int64_t n, int64_t size, float* out, int64_t out_stride) {
  const int64_t ahead = kAtOnce > 1 ? kAtOnce * stride : ahead_in_one_pass(stride);
  if (n_queries == 1) return dot_one<B>(queries, rows, stride, n, size, out, ahead);
  const int64_t padded = (size + 15) / 16 * 16, together = kCopied / padded / kRows * kRows;
  if (together == 0) return dot_block<B>(queries, query_stride, n_queries, rows, stride, n, size, out, out_stride);
  alignas(64) float copy[kCopied];
  for (int64_t first = 0; first < n; first += together) {
    const int64_t count = n - first < together ? n - first : together;
    for (int64_t r = 0; r < count; ++r) widen_row<B>(rows + (first + r) * stride, copy + r * padded, size);
    dot_block<float>(queries, query_stride, n_queries, reinterpret_cast<const std::byte*>(copy), padded * 4, count, size,
                     out + first, out_stride);
  }
}

void divide(const float* from, float by, float* to, int64_t size) {
  const f32x16 all = splat(by);
  int64_t i = 0;
  for (; i + 16 <= size; i += 16) store(to + i, load(from + i) / all);
  if (i < size) store_n(to + i, load_n(from + i, size - i) / all, size - i);
}

template <class A, class B>
constexpr FloatSums float_sums() {
  return {&each<A, B, Product>, &each<A, B, Squared>, &each<A, B, Absolute>};
}

}  // namespace

#define WEFT_EACH_FLOAT(f) {&f<float>, &f<F16>, &f<Bf16>}
const VectorKernels vector_kernels = {
    {float_sums<float, float>(), float_sums<float, F16>(), float_sums<float, Bf16>()},
    {float_sums<float, float>(), float_sums<F16, F16>(), float_sums<Bf16, Bf16>()},
    WEFT_EACH_FLOAT(squares), WEFT_EACH_FLOAT(dot_squares), WEFT_EACH_FLOAT(three), WEFT_EACH_FLOAT(dot_many),
    WEFT_EACH_FLOAT(widen_row), &divide, &i8_dot, &i8_absolute, &i8_squares, &u4_dot, &hamming};

}  // namespace weft::ISA
