#include "transport/sweep.h"

#include <algorithm>
#include <cmath>

#include "transport/deal.h"

namespace weft {
namespace {

constexpr int64_t kRows = Costs::kRows, kCols = Costs::kCols;
constexpr int64_t kMostGroups = 32;

struct Seat {  // scratch of one worker
  CostTile tile;
  std::vector<double> rows;
};

int64_t blocks_of(int64_t rows) { return (rows + kRows - 1) / kRows; }

// K of n rows from `row` on into `to` [n, m], and their largest exponents.
void fill_kernel(const Costs& costs, const Sweep& task, int64_t row, int64_t n, CostTile& scratch, double* to, double* tops) {
  const int64_t m = costs.cols();
  std::fill(tops, tops + n, kNoWeight);
  for (int64_t col = 0; col < m; col += kCols) {
    const int64_t some = std::min(kCols, m - col);
    int64_t stride = 0;
    const double* tile = costs.tile(false, row, n, col, some, scratch, &stride);
    for (int64_t i = 0; i < n; ++i)
      tops[i] = std::max(tops[i], costs.kernels().exponents_row(tile + i * stride, task.q + col, task.scale, some, to + i * m + col));
  }
  for (int64_t i = 0; i < n; ++i) costs.kernels().exp_row(to + i * m, tops[i], m);
}

}  // namespace

int64_t sweep_groups(int64_t rows) { return std::min(kMostGroups, blocks_of(rows)); }
int64_t sweep_steps(int64_t rows) {
  const int64_t groups = sweep_groups(rows);
  return (blocks_of(rows) + groups - 1) / groups;
}

bool sweep(const Costs& costs, const Sweep& task, int64_t first, int64_t count, HeldKernel held, bool reuse, Pool& pool) {
  const int64_t n = costs.rows(), m = costs.cols(), groups = sweep_groups(n), steps = sweep_steps(n);
  std::vector<Seat> seats(static_cast<size_t>(pool.size()));
  std::atomic<bool> good{true};
  const int64_t numbers = count * groups * kRows * m * (reuse || costs.kept() ? 1 : 8);
  deal_tasks(groups, numbers, pool, [&](int worker, int64_t group) {
    Seat& seat = seats[static_cast<size_t>(worker)];
    double own_tops[kRows], totals[kRows], factors[kRows];
    for (int64_t step = first; step < std::min(steps, first + count); ++step) {
      const int64_t row = (group * steps + step) * kRows, some = std::min(kRows, n - row);
      if (some <= 0) return;
      double* tops = held.values ? held.tops + row : own_tops;
      if (!held.values) seat.rows.resize(static_cast<size_t>(kRows * m));
      double* k = held.values ? held.values + row * m : seat.rows.data();
      if (!reuse) fill_kernel(costs, task, row, some, seat.tile, k, tops);
      costs.kernels().weigh_rows(k, m, some, task.w, m, totals);
      for (int64_t i = 0; i < some; ++i) {
        if (!(totals[i] > kSmallestSum && std::isfinite(totals[i]))) good.store(false, std::memory_order_relaxed);
        task.sums[row + i] = totals[i] > 0 ? tops[i] + std::log(totals[i]) : kNoWeight;
        if (!task.columns) continue;
        const double u = task.u ? task.u[row + i] : task.log_a[row + i] > kNoWeight ? task.log_a[row + i] - task.part * task.sums[row + i] : kNoWeight;
        factors[i] = u > kNoWeight ? std::exp(u + tops[i]) : 0;
      }
      if (task.columns) costs.kernels().add_rows(k, m, some, factors, m, task.columns + group * m);
    }
  });
  return good;
}

}  // namespace weft
