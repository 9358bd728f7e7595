// passes: tiles of costs from points, log-sum-exp over rows and columns of costs, rows of a plan.
//
// Meaning  weft/transport: exponents are h_j - C_ij / ε, a plan is exp(u_i + v_j - C_ij / ε)
// Layout   points [n, size], costs [n, m] with a stride, all contiguous in a row; minus infinity marks a weight of zero
// Method   sums of eight lanes (float32 products: sixteen) and a fixed tree; the largest exponent first, then exponentials
// Bound    exponentials where costs are kept, products where they are computed
#include "transport/isa/doubles.h"
#include "transport/kernels.h"

namespace weft::ISA {
namespace {

constexpr double kNone = -1e300;  // stands for minus infinity: differences of it are numbers

struct Singles {
  using Number = float;
  using Vector = f32x16;
  static constexpr int kLanes = 16;
  static WEFT_INLINE Vector start() { return zero(); }
  static WEFT_INLINE Vector whole(const float* p) { return load(p); }
  static WEFT_INLINE Vector part(const float* p, int64_t n) { return load_n(p, n); }
  static WEFT_INLINE double total(Vector a) { return sum(a); }
};
struct Doubles {
  using Number = double;
  using Vector = f64x8;
  static constexpr int kLanes = 8;
  static WEFT_INLINE Vector start() { return splat8(0); }
  static WEFT_INLINE Vector whole(const double* p) { return load8(p); }
  static WEFT_INLINE Vector part(const double* p, int64_t n) { return load8(p, n, 0); }
  static WEFT_INLINE double total(Vector a) { return sum8(a); }
};

template <class T, int rows, int cols>
WEFT_INLINE void dots_tile(const typename T::Number* a, const typename T::Number* b, int64_t size, double* out,
                           int64_t out_stride) {
  typename T::Vector s[rows][cols];
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i)
    _Pragma("GCC unroll 4") for (int j = 0; j < cols; ++j) s[i][j] = T::start();
  const auto step = [&](auto read) __attribute__((always_inline)) {
    typename T::Vector x[rows];
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) x[i] = read(a + i * size);
    _Pragma("GCC unroll 4") for (int j = 0; j < cols; ++j) {
      const typename T::Vector y = read(b + j * size);
      _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i][j] = fma(x[i], y, s[i][j]);
    }
  };
  int64_t k = 0;
  for (; k + T::kLanes <= size; k += T::kLanes)
    step([&](const typename T::Number* p) __attribute__((always_inline)) { return T::whole(p + k); });
  if (k < size)
    step([&](const typename T::Number* p) __attribute__((always_inline)) { return T::part(p + k, size - k); });
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i)
    _Pragma("GCC unroll 4") for (int j = 0; j < cols; ++j) out[i * out_stride + j] = T::total(s[i][j]);
}

// Columns are taken a few at a time, so that they stay in the first-level cache while all rows pass by.
template <class T>
WEFT_INLINE void dots(const typename T::Number* a, int64_t n, const typename T::Number* b, int64_t m, int64_t size,
                      double* out, int64_t out_stride) {
  constexpr int64_t few = 8;
  for (int64_t col = 0; col < m; col += few) {
    const int64_t last = col + few < m ? col + few : m;
    int64_t i = 0;
    for (; i + 2 <= n; i += 2) {
      int64_t j = col;
      for (; j + 2 <= last; j += 2) dots_tile<T, 2, 2>(a + i * size, b + j * size, size, out + i * out_stride + j, out_stride);
      if (j < last) dots_tile<T, 2, 1>(a + i * size, b + j * size, size, out + i * out_stride + j, out_stride);
    }
    if (i < n)
      for (int64_t j = col; j < last; ++j) dots_tile<T, 1, 1>(a + i * size, b + j * size, size, out + i * out_stride + j, out_stride);
  }
}

void dots_f32(const float* a, int64_t n, const float* b, int64_t m, int64_t size, double* out, int64_t out_stride) {
  dots<Singles>(a, n, b, m, size, out, out_stride);
}
void dots_f64(const double* a, int64_t n, const double* b, int64_t m, int64_t size, double* out, int64_t out_stride) {
  dots<Doubles>(a, n, b, m, size, out, out_stride);
}

// Lanes are points: a panel holds the k-th numbers of its 16 points side by side. Sums of 96 products are float32, those double.
template <int rows>
WEFT_INLINE void panel_tile(const float* a, const float* panel, int64_t size, double* out, int64_t out_stride, int64_t m) {
  constexpr int64_t deep = 96;
  double sums[rows][16] = {};
  for (int64_t first = 0; first < size; first += deep) {
    const int64_t last = first + deep < size ? first + deep : size;
    f32x16 s[rows];
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i] = zero();
    int64_t k = first;
#if defined(WEFT_ISA_neon)
    for (; k + 4 <= last; k += 4) {
      float32x4_t x[rows];
      _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) x[i] = vld1q_f32(a + i * size + k);
      const auto step = [&](auto lane) __attribute__((always_inline)) {
        const f32x16 y = load(panel + (k + lane) * 16);
        _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i] = fma_lane<lane>(x[i], y, s[i]);
      };
      step(std::integral_constant<int, 0>{}), step(std::integral_constant<int, 1>{});
      step(std::integral_constant<int, 2>{}), step(std::integral_constant<int, 3>{});
    }
#endif
    for (; k < last; ++k) {
      const f32x16 y = load(panel + k * 16);
      _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i] = fma(splat(a[i * size + k]), y, s[i]);
    }
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) {
      float part[16];
      store(part, s[i]);
      for (int lane = 0; lane < 16; ++lane) sums[i][lane] += static_cast<double>(part[lane]);
    }
  }
  for (int i = 0; i < rows; ++i)
    for (int64_t lane = 0; lane < m; ++lane) out[i * out_stride + lane] = sums[i][lane];
}

void panel_dots(const float* a, int64_t n, const float* panels, int64_t m, int64_t size, double* out, int64_t out_stride) {
  for (int64_t col = 0; col < m; col += 16) {
    const float* panel = panels + col * size;
    const int64_t some = m - col < 16 ? m - col : 16;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) panel_tile<4>(a + i * size, panel, size, out + i * out_stride + col, out_stride, some);
    for (; i < n; ++i) panel_tile<1>(a + i * size, panel, size, out + i * out_stride + col, out_stride, some);
  }
}

LogSum add_row(LogSum so_far, const double* cost, const double* h, double scale, int64_t m, double* exponents) {
  const f64x8 minus = splat8(-scale);
  f64x8 most = splat8(kNone);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) {
    const f64x8 e = fma(load8(cost + j), minus, load8(h + j));
    store8(exponents + j, e);
    most = larger(e, most);
  }
  if (j < m) {
    const f64x8 e = fma(load8(cost + j, m - j, 0), minus, load8(h + j, m - j, kNone));
    store8(exponents + j, e, m - j);
    most = larger(e, most);
  }
  const double tile = largest8(most), largest = tile > so_far.largest ? tile : so_far.largest;
  if (largest <= kNone) return so_far;
  const f64x8 top = splat8(largest);
  f64x8 s0 = splat8(0), s1 = s0;
  for (j = 0; j + 16 <= m; j += 16) {
    s0 = s0 + exp8(load8(exponents + j) - top);
    s1 = s1 + exp8(load8(exponents + j + 8) - top);
  }
  if (j + 8 <= m) s0 = s0 + exp8(load8(exponents + j) - top), j += 8;
  if (j < m) s1 = s1 + exp8(load8(exponents + j, m - j, kNone) - top);
  return {largest, so_far.sum * exp8(so_far.largest - largest) + sum8(s0 + s1)};
}

WEFT_INLINE void columns8(LogSum* so_far, const double* cost, int64_t stride, const double* h, f64x8 minus, int64_t n, int64_t m) {
  double largest[8], sums[8];
  for (int i = 0; i < 8; ++i) largest[i] = i < m ? so_far[i].largest : kNone, sums[i] = i < m ? so_far[i].sum : 0;
  const auto exponent = [&](int64_t i) __attribute__((always_inline)) {
    const double* at = cost + i * stride;
    return fma(m < 8 ? load8(at, m, 0) : load8(at), minus, splat8(h[i]));
  };
  const f64x8 before = load8(largest);
  f64x8 top = before, s0 = splat8(0), s1 = s0;
  for (int64_t i = 0; i < n; ++i) top = larger(exponent(i), top);
  int64_t i = 0;
  for (; i + 2 <= n; i += 2) {
    s0 = s0 + exp8(exponent(i) - top);
    s1 = s1 + exp8(exponent(i + 1) - top);
  }
  if (i < n) s0 = s0 + exp8(exponent(i) - top);
  const f64x8 all = fma(load8(sums), exp8(before - top), s0 + s1);
  store8(largest, top), store8(sums, all);
  for (int k = 0; k < 8 && k < m; ++k)
    if (largest[k] > kNone) so_far[k] = {largest[k], sums[k]};
}

void add_columns(LogSum* so_far, const double* cost, int64_t stride, const double* h, double scale, int64_t n, int64_t m) {
  const f64x8 minus = splat8(-scale);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) columns8(so_far + j, cost + j, stride, h, minus, n, 8);
  if (j < m) columns8(so_far + j, cost + j, stride, h, minus, n, m - j);
}

void plan_row(const double* cost, double u, const double* v, double scale, int64_t m, double* plan, double* mass, double* spent) {
  const f64x8 minus = splat8(-scale), start = splat8(u);
  f64x8 masses = splat8(0), costs = masses;
  const auto add = [&](f64x8 c, f64x8 e) __attribute__((always_inline)) {
    const f64x8 p = exp8(e);
    masses = masses + p;
    costs = fma(p, c, costs);
    return p;
  };
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) {
    const f64x8 c = load8(cost + j);
    store8(plan + j, add(c, fma(c, minus, start + load8(v + j))));
  }
  if (j < m) {
    const f64x8 c = load8(cost + j, m - j, 0);
    store8(plan + j, add(c, fma(c, minus, start + load8(v + j, m - j, kNone))), m - j);
  }
  *mass += sum8(masses), *spent += sum8(costs);
}

double exponents_row(const double* cost, const double* q, double scale, int64_t m, double* out) {
  const f64x8 minus = splat8(-scale);
  f64x8 most = splat8(kNone);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) {
    const f64x8 e = fma(load8(cost + j), minus, load8(q + j));
    store8(out + j, e);
    most = larger(e, most);
  }
  if (j < m) {
    const f64x8 e = fma(load8(cost + j, m - j, 0), minus, load8(q + j, m - j, kNone));
    store8(out + j, e, m - j);
    most = larger(e, most);
  }
  return largest8(most);
}

void exp_row(double* row, double top, int64_t m) {
  const f64x8 t = splat8(top);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) store8(row + j, exp8(load8(row + j) - t));
  if (j < m) store8(row + j, exp8(load8(row + j, m - j, kNone) - t), m - j);
}

template <int rows>
WEFT_INLINE void weigh_some(const double* k, int64_t stride, const double* w, int64_t m, double* out) {
  f64x8 s[rows];
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i] = splat8(0);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) {
    const f64x8 x = load8(w + j);
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i] = fma(load8(k + i * stride + j), x, s[i]);
  }
  if (j < m) {
    const f64x8 x = load8(w + j, m - j, 0);
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s[i] = fma(load8(k + i * stride + j, m - j, 0), x, s[i]);
  }
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) out[i] = sum8(s[i]);
}

void weigh_rows(const double* k, int64_t stride, int64_t n, const double* w, int64_t m, double* out) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) weigh_some<4>(k + i * stride, stride, w, m, out + i);
  for (; i < n; ++i) weigh_some<1>(k + i * stride, stride, w, m, out + i);
}

template <int rows>
WEFT_INLINE void add_some(const double* k, int64_t stride, const double* factors, int64_t m, double* to) {
  f64x8 f[rows];
  _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) f[i] = splat8(factors[i]);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) {
    f64x8 s = load8(to + j);
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s = fma(f[i], load8(k + i * stride + j), s);
    store8(to + j, s);
  }
  if (j < m) {
    f64x8 s = load8(to + j, m - j, 0);
    _Pragma("GCC unroll 4") for (int i = 0; i < rows; ++i) s = fma(f[i], load8(k + i * stride + j, m - j, 0), s);
    store8(to + j, s, m - j);
  }
}

void add_rows(const double* k, int64_t stride, int64_t n, const double* factors, int64_t m, double* to) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) add_some<4>(k + i * stride, stride, factors + i, m, to);
  for (; i < n; ++i) add_some<1>(k + i * stride, stride, factors + i, m, to);
}

void add_scaled(double factor, const double* from, double* to, int64_t m) {
  const f64x8 f = splat8(factor);
  int64_t j = 0;
  for (; j + 8 <= m; j += 8) store8(to + j, fma(f, load8(from + j), load8(to + j)));
  if (j < m) store8(to + j, fma(f, load8(from + j, m - j, 0), load8(to + j, m - j, 0)), m - j);
}

}  // namespace

extern const TransportKernels transport_kernels;
const TransportKernels transport_kernels = {dots_f32, dots_f64, panel_dots, add_row,       add_columns, plan_row,
                                            exponents_row, exp_row, weigh_rows, add_rows, add_scaled};

}  // namespace weft::ISA
