// rms_norm at every level agrees with a double-precision loop, around vector widths and on misaligned rows.
#include <cmath>
#include <random>

#include "tests/test.h"

using namespace weft;

TEST(rms_norm_agrees_with_a_double_loop) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    for (int64_t dim : {1, 15, 16, 17, 64, 65, 1023})
      for (int shift : {0, 1, 3}) {
        std::vector<float> x(3 * dim + shift), w(dim), y(3 * dim + shift);
        for (float& v : x) v = normal(random);
        for (float& v : w) v = normal(random);
        Operand in{reinterpret_cast<std::byte*>(x.data() + shift), DType::f32, 2, {3, dim}};
        Operand weight{reinterpret_cast<std::byte*>(w.data()), DType::f32, 1, {dim}};
        Operand out{reinterpret_cast<std::byte*>(y.data() + shift), DType::f32, 2, {3, dim}};
        test::run_kernel(level, "rms_norm", {in, weight}, {out}, {{"eps", 1e-5}}, 2);
        for (int64_t row = 0; row < 3; ++row) {
          double total = 0;
          for (int64_t i = 0; i < dim; ++i) total += double(x[shift + row * dim + i]) * x[shift + row * dim + i];
          double scale = 1 / std::sqrt(total / dim + 1e-5);
          for (int64_t i = 0; i < dim; ++i) {
            double want = x[shift + row * dim + i] * scale * w[i];
            CHECK(std::abs(y[shift + row * dim + i] - want) <= 1e-5 * (1 + std::abs(want)));
          }
        }
      }
  }
}
