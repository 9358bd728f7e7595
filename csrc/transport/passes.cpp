#include "transport/passes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "transport/deal.h"

namespace weft {
namespace {

constexpr int64_t kRows = Costs::kRows, kCols = Costs::kCols;
constexpr int64_t kStrip = 64, kDeep = 32;  // columns of a task, and rows whose largest exponent is found before the sums

struct Seat {  // scratch of one worker
  CostTile tile;
  std::vector<double> numbers;
};

// Calls work(seat, row, n, col, m, costs, stride) for the tiles of every block of rows, its columns in order.
template <class F>
void each_tile(const Costs& costs, bool turned, Range range, Pool& pool, F work) {
  const int64_t cols = turned ? costs.rows() : costs.cols(), last = range.first + range.count;
  std::vector<Seat> seats(static_cast<size_t>(pool.size()));
  const int64_t numbers = range.count * cols * (costs.kept() ? 1 : 8);
  deal_tasks((range.count + kRows - 1) / kRows, numbers, pool, [&](int worker, int64_t task) {
    Seat& seat = seats[static_cast<size_t>(worker)];
    const int64_t row = range.first + task * kRows, n = std::min(kRows, last - row);
    for (int64_t col = 0; col < cols; col += kCols) {
      const int64_t m = std::min(kCols, cols - col);
      int64_t stride = 0;
      const double* tile = costs.tile(turned, row, n, col, m, seat.tile, &stride);
      work(seat, row, n, col, m, tile, stride);
    }
  });
}

double finished(LogSum sum) { return sum.sum > 0 ? sum.largest + std::log(sum.sum) : kNoWeight; }

// Columns of a matrix that exists, without turning it.
void column_sums(const Costs& costs, Range range, const double* h, double scale, double* out, Pool& pool) {
  const int64_t last = range.first + range.count;
  deal_tasks((range.count + kStrip - 1) / kStrip, range.count * costs.rows(), pool, [&](int, int64_t task) {
    const int64_t col = range.first + task * kStrip, m = std::min(kStrip, last - col);
    LogSum sums[kStrip];
    std::fill(sums, sums + m, LogSum{kNoWeight, 0});
    for (int64_t row = 0; row < costs.rows(); row += kDeep)
      costs.kernels().add_columns(sums, costs.matrix() + row * costs.cols() + col, costs.cols(), h + row, scale,
                                  std::min(kDeep, costs.rows() - row), m);
    for (int64_t j = 0; j < m; ++j) out[task * kStrip + j] = finished(sums[j]);
  });
}

}  // namespace

void log_sums(const Costs& costs, bool turned, Range range, const double* h, double scale, double* out, Pool& pool) {
  if (turned && costs.kept()) return column_sums(costs, range, h, scale, out, pool);
  const int64_t cols = turned ? costs.rows() : costs.cols();
  each_tile(costs, turned, range, pool, [&](Seat& seat, int64_t row, int64_t n, int64_t col, int64_t m, const double* tile, int64_t stride) {
    seat.numbers.resize(static_cast<size_t>(kCols + 2 * kRows));
    double *largest = seat.numbers.data() + kCols, *sums = largest + kRows;
    for (int64_t i = 0; i < n; ++i) {
      const LogSum before = col ? LogSum{largest[i], sums[i]} : LogSum{kNoWeight, 0};
      const LogSum after = costs.kernels().add_row(before, tile + i * stride, h + col, scale, m, seat.numbers.data());
      largest[i] = after.largest, sums[i] = after.sum;
      if (col + m == cols) out[row - range.first + i] = finished(after);
    }
  });
}

void plan_sums(const Costs& costs, bool turned, Range range, const double* u, const double* v, double scale, double* mass,
               double* spent, Pool& pool) {
  std::fill(mass, mass + range.count, 0.0);
  std::fill(spent, spent + range.count, 0.0);
  each_tile(costs, turned, range, pool, [&](Seat& seat, int64_t row, int64_t n, int64_t col, int64_t m, const double* tile, int64_t stride) {
    seat.numbers.resize(static_cast<size_t>(kCols));
    for (int64_t i = 0; i < n; ++i)
      costs.kernels().plan_row(tile + i * stride, u[row + i], v + col, scale, m, seat.numbers.data(), mass + row - range.first + i,
                               spent + row - range.first + i);
  });
}

void plan_product(const Costs& costs, bool turned, Range range, const double* u, const double* v, double scale, const double* x,
                  int64_t width, double* out, Pool& pool) {
  std::fill(out, out + range.count * width, 0.0);
  each_tile(costs, turned, range, pool, [&](Seat& seat, int64_t row, int64_t n, int64_t col, int64_t m, const double* tile, int64_t stride) {
    seat.numbers.resize(static_cast<size_t>(kCols));
    double mass = 0, spent = 0;
    for (int64_t i = 0; i < n; ++i) {
      costs.kernels().plan_row(tile + i * stride, u[row + i], v + col, scale, m, seat.numbers.data(), &mass, &spent);
      for (int64_t j = 0; j < m; ++j)
        if (seat.numbers[static_cast<size_t>(j)] != 0)
          costs.kernels().add_scaled(seat.numbers[static_cast<size_t>(j)], x + (col + j) * width, out + (row - range.first + i) * width, width);
    }
  });
}

void plan_rows(const Costs& costs, bool turned, Range range, const double* u, const double* v, double scale, double* out, Pool& pool) {
  const int64_t cols = turned ? costs.rows() : costs.cols();
  each_tile(costs, turned, range, pool, [&](Seat&, int64_t row, int64_t n, int64_t col, int64_t m, const double* tile, int64_t stride) {
    double mass = 0, spent = 0;
    for (int64_t i = 0; i < n; ++i)
      costs.kernels().plan_row(tile + i * stride, u[row + i], v + col, scale, m, out + (row - range.first + i) * cols + col, &mass, &spent);
  });
}

void cost_rows(const Costs& costs, bool turned, Range range, double* out, Pool& pool) {
  const int64_t cols = turned ? costs.rows() : costs.cols();
  each_tile(costs, turned, range, pool, [&](Seat&, int64_t row, int64_t n, int64_t col, int64_t m, const double* tile, int64_t stride) {
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(out + (row - range.first + i) * cols + col, tile + i * stride, static_cast<size_t>(m) * sizeof(double));
  });
}

void point_products(const TransportKernels& kernels, const Points& a, const Points& b, double* out, Pool& pool) {
  deal_tasks((a.count + kRows - 1) / kRows, a.count * b.count * 8, pool, [&](int, int64_t task) {
    const int64_t row = task * kRows, n = std::min(kRows, a.count - row);
    double* to = out + row * b.count;
    if (a.wide)
      kernels.dots_f64(static_cast<const double*>(a.row(row)), n, static_cast<const double*>(b.data), b.count, a.dim, to, b.count);
    else
      kernels.dots_f32(static_cast<const float*>(a.row(row)), n, static_cast<const float*>(b.data), b.count, a.dim, to, b.count);
  });
}

}  // namespace weft
