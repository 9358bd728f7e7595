// hadamard at every level agrees with the matrix it stands for, in place and beside, and its inverse undoes it.
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

static double entry(const Floats& factor, size_t parts, size_t size, size_t stride, bool inverse, size_t i, size_t j) {
  if (i % stride != j % stride) return 0;
  const size_t p = i / (size * stride), q = j / (size * stride), a = i / stride % size, b = j / stride % size;
  const double f = parts == 1 ? 1 : factor[inverse ? q * parts + p : p * parts + q];
  return f * (__builtin_popcountll(a & b) % 2 ? -1 : 1) / std::sqrt(static_cast<double>(size));
}

struct HadamardCase {
  int64_t parts, size, stride;
};

TEST(hadamard_is_its_matrix_and_may_work_in_place) {
  for (const auto& [parts, size, stride] :
       {HadamardCase{1, 1, 1}, {1, 2, 1}, {1, 16, 1}, {3, 32, 1}, {1, 256, 1}, {5, 8, 1}, {9, 1, 64}, {3, 4, 16}, {2, 8, 17}})
    for (bool inverse : {false, true}) {
      const int64_t columns = parts * size * stride;
      Floats x = normal({3, columns}, 1, 1), factor = normal({parts * parts}, 2, 1);
      const std::vector<Attr> attrs{{"size", double(size)}, {"stride", double(stride)}, {"inverse", double(inverse)}};
      const Operand second = parts == 1 ? Operand{} : factor.operand();
      const size_t n = static_cast<size_t>(columns);
      const std::vector<double> want = map(3 * n, [&](size_t at) {
        double total = 0;
        for (size_t j = 0; j < n; ++j)
          total += entry(factor, static_cast<size_t>(parts), static_cast<size_t>(size), static_cast<size_t>(stride), inverse, at % n, j) * x[at / n * n + j];
        return total;
      });
      check_op("hadamard", {x.operand(), second}, {3, columns}, 1, attrs, want, 1e-5);
      for (const Level& level : levels()) {
        if (!level.present()) continue;
        Floats place = x, apart({3, columns}, 1);
        run_kernel(level, "hadamard", {x.operand(), second}, {apart.operand()}, attrs, 2);
        run_kernel(level, "hadamard", {place.operand(), second}, {place.operand()}, attrs, 2);
        CHECK(same_bits(place, apart));
      }
    }
}

TEST(hadamard_without_a_factor_has_the_same_bits_at_every_level_and_undoes_itself) {
  Floats x = normal({4, 1024}, 3, 1);
  const std::vector<Attr> attrs{{"size", 1024.0}, {"stride", 1.0}, {"inverse", 0.0}};
  std::vector<Floats> all;
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    Floats once({4, 1024}), twice({4, 1024});
    run_kernel(level, "hadamard", {x.operand(), Operand{}}, {once.operand()}, attrs, 2);
    run_kernel(level, "hadamard", {once.operand(), Operand{}}, {twice.operand()}, attrs, 2);
    CHECK(error_of(twice, map(x.size(), [&](size_t i) { return x[i]; })) < 1e-5);
    all.push_back(once);
  }
  for (const Floats& one : all) CHECK(same_bits(one, all.front()));
}
