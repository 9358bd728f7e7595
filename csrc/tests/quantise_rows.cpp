// quantise_rows follows the formulas of docs/design/core.md to the bit at every level.
#include "kernels/matmul_a8.h"
#include "tests/quantise_reference.h"

using namespace weft;
using namespace weft::test;

template <int block>
static void check_block(const std::vector<float>& x, int64_t rows, int64_t depth, int shift) {
  std::vector<A8<block>> want;
  for (size_t i = 0; i < x.size(); i += block) want.push_back(quantise_reference<block>(&x[i]));
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    for (int workers : {1, 3}) {
      const std::vector<A8<block>> got = quantise<block>(level, x, rows, depth, workers, shift);
      CHECK(got.size() == want.size());
      CHECK(std::memcmp(got.data(), want.data(), want.size() * sizeof(A8<block>)) == 0);
    }
  }
}

TEST(quantise_rows_follows_the_formulas_at_every_level) {
  std::mt19937 random(7);
  for (int64_t rows : {1, 5})
    for (int64_t depth : {256, 768})
      for (int shift : {0, 1}) {
        std::vector<float> x = random_floats(static_cast<size_t>(rows * depth), random);
        for (int i = 0; i < 32; ++i) x[32 + i] = 0;                     // a block of zeros
        for (int i = 64; i < 96; ++i) x[i] = (i % 2 ? 1 : -1) * 0.75f;  // every value is the largest
        x[100] = 1e-6f, x[128] = -40.0f, x[130] = 40.0f;                // an outlier of both signs, negative first
        check_block<32>(x, rows, depth, shift);
        check_block<256>(x, rows, depth, shift);
      }
}

TEST(quantise_rows_gives_zeros_for_zeros) {
  const std::vector<float> x(512, 0.0f);
  check_block<32>(x, 1, 512, 0);
  check_block<256>(x, 1, 512, 0);
  CHECK(quantise_reference<256>(x.data()).d == 0);
}

TEST(quantise_rows_stays_in_range_on_infinities_and_nan) {
  std::vector<float> x(256, 1.0f);
  x[3] = INFINITY, x[40] = -INFINITY, x[70] = NAN, x[100] = 1e-40f;
  for (const Level& level : levels())
    if (level.present()) {
      for (const A8<32>& block : quantise<32>(level, x, 1, 256, 1, 0))
        for (int8_t q : block.q) CHECK(q >= -127);
      for (const A8<256>& block : quantise<256>(level, x, 1, 256, 1, 0))
        for (int8_t q : block.q) CHECK(q >= -127);
    }
}
