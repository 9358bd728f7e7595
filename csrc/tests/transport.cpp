// Passes over costs agree with double precision at every level, whichever side is read by rows, kept or computed; any team and any
// range of rows gives the same bits.
#include "transport/passes.h"

#include <cmath>

#include "tests/arrays.h"
#include "transport/sweep.h"

using namespace weft;
using namespace weft::test;

static std::vector<double> doubles(int64_t count, uint32_t seed) {
  const Floats drawn = normal({count}, static_cast<int>(seed));
  std::vector<double> out;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) out.push_back(drawn[i]);
  return out;
}

static double plain_log_sum(const std::vector<double>& x, const std::vector<double>& y, int64_t dim, int64_t i, const std::vector<double>& h,
                            double scale, bool turned) {
  double total = 0;
  for (size_t j = 0; j < h.size(); ++j) {
    const double *a = x.data() + (turned ? static_cast<int64_t>(j) : i) * dim, *b = y.data() + (turned ? i : static_cast<int64_t>(j)) * dim;
    double cost = 0;
    for (int64_t k = 0; k < dim; ++k) cost += (a[k] - b[k]) * (a[k] - b[k]);
    if (h[j] > kNoWeight) total += std::exp(h[j] - cost * scale);
  }
  return std::log(total);
}

TEST(transport_log_sums_at_every_level) {
  Pool one(1), three(3);
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 9, 3}, {40, 530, 17}, {300, 350, 8}};
  for (const auto& [n, m, dim] : sizes) {
    const std::vector<double> x = doubles(n * dim, 1), y = doubles(m * dim, 2);
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      const TransportKernels& kernels = transport_kernels(level);
      const Costs computed(kernels, {x.data(), n, dim, true}, {y.data(), m, dim, true}, CostMetric::squared, one);
      std::vector<double> matrix(static_cast<size_t>(n * m));
      cost_rows(computed, false, {0, n}, matrix.data(), three);
      const Costs given(kernels, matrix.data(), n, m);
      for (const bool kept : {false, true}) {
        const Costs& costs = kept ? given : computed;
        for (bool turned : {false, true}) {
          std::vector<double> h = doubles(turned ? n : m, 3), out(static_cast<size_t>(turned ? m : n)), again(out.size());
          if (h.size() > 3) h[1] = kNoWeight;
          const auto count = static_cast<int64_t>(out.size());
          log_sums(costs, turned, {0, count}, h.data(), 0.25, out.data(), one);
          for (int64_t i = 0; i < count; ++i)
            CHECK(std::abs(out[static_cast<size_t>(i)] - plain_log_sum(x, y, dim, i, h, 0.25, turned)) < 1e-11);
          const int64_t half = count / 2;
          log_sums(costs, turned, {0, half}, h.data(), 0.25, again.data(), three);
          log_sums(costs, turned, {half, count - half}, h.data(), 0.25, again.data() + half, three);
          CHECK(out == again);
        }
      }
    }
  }
}

TEST(transport_sweeps_agree_with_passes) {
  Pool one(1), three(3);
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 9, 3}, {40, 530, 17}, {700, 50, 100}};
  for (const auto& [n, m, dim] : sizes) {
    const Floats x = normal({n, dim}, 1), y = normal({m, dim}, 2);
    for (const Level& level : levels()) {
      if (!level.present()) continue;
      const Costs costs(transport_kernels(level), {x.data(), n, dim, false}, {y.data(), m, dim, false}, CostMetric::squared, one);
      const std::vector<double> q = doubles(m, 3), log_a = doubles(n, 4);
      std::vector<double> w(q.size(), 1.0), h = q, wanted(log_a.size()), columns(q.size()), u(log_a.size());
      if (m > 3) w[1] = 0, h[1] = kNoWeight;
      const double scale = 0.02, part = 0.75;
      log_sums(costs, false, {0, n}, h.data(), scale, wanted.data(), one);
      for (size_t i = 0; i < u.size(); ++i) u[i] = log_a[i] - part * wanted[i];
      log_sums(costs, true, {0, m}, u.data(), scale, columns.data(), one);
      std::vector<double> kernel(static_cast<size_t>(n * m)), tops(log_a.size()), before;
      for (Pool* pool : {&one, &three})
        for (const int run : {0, 1, 2}) {  // nothing held, then held, then reused
          std::vector<double> sums(log_a.size()), parts(static_cast<size_t>(sweep_groups(n) * m));
          const Sweep task{q.data(), w.data(), scale, log_a.data(), part, nullptr, sums.data(), parts.data()};
          const HeldKernel held = run ? HeldKernel{kernel.data(), tops.data()} : HeldKernel{nullptr, nullptr};
          const int64_t steps = sweep_steps(n), half = steps / 2;
          CHECK(sweep(costs, task, 0, half, held, run == 2, *pool) && sweep(costs, task, half, steps - half, held, run == 2, *pool));
          for (int64_t j = 0; j < m; ++j) {
            double total = 0;
            for (int64_t group = 0; group < sweep_groups(n); ++group) total += parts[static_cast<size_t>(group * m + j)];
            CHECK(std::abs(std::log(total) - q[static_cast<size_t>(j)] - columns[static_cast<size_t>(j)]) < 1e-11);
          }
          for (size_t i = 0; i < sums.size(); ++i) CHECK(std::abs(sums[i] - wanted[i]) < 1e-11);
          sums.insert(sums.end(), parts.begin(), parts.end());
          CHECK(before.empty() || before == sums);
          before = sums;
        }
    }
  }
}

TEST(transport_products_of_float32_agree_with_doubles) {
  const int64_t n = 19, m = 23, dim = 37;
  const Floats x = normal({n, dim}, 4), y = normal({m, dim}, 5);
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Pool pool(2);
    std::vector<double> out(static_cast<size_t>(n * m));
    point_products(transport_kernels(level), {x.data(), n, dim, false}, {y.data(), m, dim, false}, out.data(), pool);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) {
        double wanted = 0;
        for (int64_t k = 0; k < dim; ++k) wanted += static_cast<double>(x.data()[i * dim + k]) * y.data()[j * dim + k];
        CHECK(std::abs(out[static_cast<size_t>(i * m + j)] - wanted) < 1e-5);
      }
  }
}
