// Sums over vectors agree with double precision at every level, those of integers exactly; a row gives the same bits
// alone, in a tile and in a scan by any team; the best k are those of a sorted list.
#include "vectors/kernels.h"

#include <numeric>

#include "core/half.h"
#include "tests/arrays.h"
#include "vectors/codes.h"
#include "vectors/scan.h"

using namespace weft;
using namespace weft::test;

static const int64_t kSizes[] = {1, 7, 15, 16, 17, 33, 63, 64, 65, 113, 127, 128, 129, 384, 1023};

static std::vector<const Level*> present() {
  std::vector<const Level*> found;
  for (const Level& level : levels())
    if (level.present()) found.push_back(&level);
  return found;
}
static const std::byte* bytes(const void* p) { return static_cast<const std::byte*>(p); }

// The same numbers as f32, f16 and bf16; `wide` is what each stands for.
struct Typed {
  std::vector<uint16_t> bits;
  std::vector<float> wide;
  int type;
  Typed(const Floats& x, int type_) : bits(x.size()), wide(x.size()), type(type_) {
    for (size_t i = 0; i < x.size(); ++i) {
      bits[i] = type == 1 ? float_to_half(x[i]) : float_to_bf16(x[i]);
      wide[i] = type == 0 ? x[i] : type == 1 ? half_to_float(bits[i]) : bf16_to_float(bits[i]);
    }
  }
  const void* data() const { return type ? static_cast<const void*>(bits.data()) : wide.data(); }
  int64_t bytes_each() const { return type ? 2 : 4; }
};

static std::vector<double> wanted(const float* a, const std::vector<float>& b, int64_t rows, int64_t dim, int kind) {
  return map(static_cast<size_t>(rows), [&](size_t r) {
    double total = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double x = a[i], y = b[r * static_cast<size_t>(dim) + static_cast<size_t>(i)];
      total += kind == 0 ? x * y : kind == 1 ? (x - y) * (x - y) : kind == 2 ? std::abs(x - y) : y * y;
    }
    return total;
  });
}

TEST(vectors_float_sums_agree_with_double_precision) {
  for (int64_t dim : kSizes)
    for (int type = 0; type < kFloatTypes; ++type) {
      const Typed query(normal({dim}, 1), type), rows(normal({5, dim}, 2), type);
      std::vector<Floats> fused;
      for (const Level* level : present()) {
        const VectorKernels& k = vector_kernels(*level);
        const int64_t stride = dim * rows.bytes_each();
        Floats all({5, 4}), out({5}), squares({5});
        const FloatSum sums[] = {k.scan[type].dot, k.scan[type].squared, k.scan[type].absolute, k.squares[type]};
        for (int kind = 0; kind < 4; ++kind) {
          sums[kind](query.wide.data(), bytes(rows.data()), stride, 5, dim, out.data());
          CHECK(error_of(out, wanted(query.wide.data(), rows.wide, 5, dim, kind)) < 1e-5);
          std::copy(out.data(), out.data() + 5, all.data() + 5 * kind);
        }
        k.dot_squares[type](query.wide.data(), bytes(rows.data()), stride, 5, dim, out.data(), squares.data());
        CHECK(std::memcmp(out.data(), all.data(), 20) == 0 && std::memcmp(squares.data(), all.data() + 15, 20) == 0);
        const FloatSum pairs[] = {k.pair[type].dot, k.pair[type].squared, k.pair[type].absolute};
        for (int kind = 0; kind < 3; ++kind) {
          pairs[kind](query.data(), bytes(rows.data()), stride, 5, dim, out.data());
          CHECK(std::memcmp(out.data(), all.data() + 5 * kind, 20) == 0);
        }
        float three[3], own;
        k.three[type](query.data(), rows.data(), dim, three);
        k.squares[0](nullptr, bytes(query.wide.data()), 0, 1, dim, &own);
        CHECK(three[0] == all[0] && three[1] == own && three[2] == all[15]);
        if (fuses(*level)) fused.push_back(all);
      }
      for (const Floats& result : fused) CHECK(same_bits(fused.front(), result));
    }
}

TEST(vectors_tiles_have_the_bits_of_single_rows) {
  for (int64_t dim : kSizes)
    for (const Level* level : present()) {
      const VectorKernels& k = vector_kernels(*level);
      Floats queries = normal({5, dim}, 1, 1), rows = normal({11, dim}, 2, 1), tile({5, 11}), alone({5, 11});
      k.dot_many[0](queries.data(), dim, 5, bytes(rows.data()), dim * 4, 11, dim, tile.data(), 11);
      for (int64_t q = 0; q < 5; ++q)
        for (int64_t r = 0; r < 11; ++r)
          k.scan[0].dot(queries.data() + q * dim, bytes(rows.data() + r * dim), 0, 1, dim, alone.data() + q * 11 + r);
      CHECK(same_bits(tile, alone));
    }
}

TEST(vectors_integer_sums_are_exact_at_every_level) {
  constexpr int kRows = 7;  // four at once, and three one by one
  std::mt19937 random(3);
  std::vector<int64_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.insert(sizes.end(), {48, 496, 512});
  for (int64_t size : sizes) {
    std::vector<uint8_t> a(static_cast<size_t>(size)), b(static_cast<size_t>(kRows * size));
    for (auto* bytes : {&a, &b})
      for (uint8_t& byte : *bytes) byte = random() % 5 ? static_cast<uint8_t>(random()) : 0x80;  // -128 too
    for (const Level* level : present()) {
      const VectorKernels& k = vector_kernels(*level);
      const IntSum sums[] = {k.i8_dot, k.i8_absolute, k.i8_squares, k.u4_dot, k.hamming};
      for (int kind = 0; kind < 5; ++kind) {
        int32_t got[kRows];
        sums[kind](a.data(), bytes(b.data()), size, kRows, size, got);
        for (size_t r = 0; r < kRows; ++r) {
          int32_t want = 0;
          for (size_t i = 0; i < a.size(); ++i) {
            const uint8_t x = a[i], y = b[r * a.size() + i];
            const int32_t sx = static_cast<int8_t>(x), sy = static_cast<int8_t>(y);
            // in double precision: gcc 12 for Arm takes |int8 - int8| for an instruction that overflows
            const auto apart = static_cast<int32_t>(std::fabs(static_cast<double>(sx) - sy));
            want += kind == 0 ? sx * sy : kind == 1 ? apart : kind == 2 ? sy * sy
                    : kind == 3 ? (x >> 4) * (y >> 4) + (x & 15) * (y & 15) : __builtin_popcount(x ^ y);
          }
          CHECK(got[r] == want);
        }
      }
    }
  }
}

TEST(vectors_all_bits_of_a_row_may_differ) {
  for (int64_t size : {16, 48, 496, 512, 1000})
    for (const Level* level : present()) {
      const std::vector<uint8_t> none(static_cast<size_t>(size)), all(static_cast<size_t>(5 * size), 0xFF);
      int32_t got[5];
      vector_kernels(*level).hamming(none.data(), bytes(all.data()), size, 5, size, got);
      for (int32_t count : got) CHECK(count == 8 * size);
    }
}

TEST(vectors_sums_of_the_longest_rows_of_bytes_do_not_overflow) {
  const std::vector<uint8_t> a(kMaxDim, 0x80);
  for (const Level* level : present()) {
    int32_t got = 0;
    vector_kernels(*level).i8_dot(a.data(), bytes(a.data()), 0, 1, kMaxDim, &got);
    CHECK(got == 128 * 128 * int32_t{kMaxDim});
  }
}

static Rows rows_of(const Floats& x) {
  Rows rows;
  rows.data = bytes(x.data());
  rows.count = x.shape()[0], rows.dim = x.shape()[1], rows.stride = rows.dim * 4;
  return rows;
}

TEST(vectors_the_best_are_those_of_the_sorted_scores_for_any_team) {
  Floats queries = normal({3, 48}, 1), x = normal({9000, 48}, 2);
  std::copy(x.data(), x.data() + 48, x.data() + 48 * 7000);  // equal scores: the lower row comes first
  std::vector<uint8_t> allowed(9000);
  for (size_t i = 0; i < allowed.size(); ++i) allowed[i] = i % 7 != 3;
  Pool one(1), three(3);
  for (const Level* level : present())
    for (Metric metric : {Metric::dot, Metric::cosine, Metric::squared, Metric::manhattan}) {
      const Scorer scorer(vector_kernels(*level), rows_of(queries), rows_of(x), metric);
      Floats scores({3, 9000}), again({3, 9000});
      scan_scores(scorer, scores.data(), one);
      scan_scores(scorer, again.data(), three);
      CHECK(same_bits(scores, again));
      for (const uint8_t* mask : {static_cast<const uint8_t*>(nullptr), static_cast<const uint8_t*>(allowed.data())}) {
        const Hits hits = scan_top(scorer, 20, mask, one), more = scan_top(scorer, 20, mask, three);
        CHECK(hits.rows == more.rows && hits.scores == more.scores);
        for (size_t q = 0; q < 3; ++q) {
          std::vector<int64_t> order(9000);
          std::iota(order.begin(), order.end(), 0);
          if (mask) std::erase_if(order, [&](int64_t row) { return !mask[row]; });
          const float* found = scores.data() + q * 9000;
          std::stable_sort(order.begin(), order.end(), [&](int64_t i, int64_t j) {
            return larger_is_nearer(metric) ? found[i] > found[j] : found[i] < found[j];
          });
          CHECK(std::equal(order.begin(), order.begin() + 20, hits.rows.begin() + static_cast<int64_t>(q) * 20));
          CHECK(hits.scores[q * 20] == found[order[0]]);
          const Hits some = scan_chosen(scorer, 20, more.rows.data(), 20, three);
          CHECK(some.rows == hits.rows && some.scores == hits.scores);
        }
      }
    }
}

TEST(vectors_codes_are_rounded_half_away_from_zero) {
  Pool pool(2);
  Floats x({2, 5});
  const float values[] = {127, 0.5f, -0.5f, 2.5f, -1.49f, 0, 0, 0, 0, 0};
  std::copy(values, values + 10, x.data());
  int8_t codes[10];
  float norms[2], scales[2], offsets[2];
  int32_t sums[2];
  CodesOut out{reinterpret_cast<std::byte*>(codes), norms, scales};
  encode(Element::i8, bytes(x.data()), 2, 5, 20, 0, out, pool);
  const int8_t want[] = {127, 1, -1, 3, -1, 0, 0, 0, 0, 0};
  CHECK(std::memcmp(codes, want, 10) == 0 && scales[0] == 1 && scales[1] == 1 && norms[1] == 0);
  uint8_t packed[6];
  out = {reinterpret_cast<std::byte*>(packed), norms, scales, offsets, sums};
  encode(Element::u4, bytes(x.data()), 2, 5, 20, 0, out, pool);
  CHECK(packed[0] == 0xF8 && packed[1] == 0x78 && packed[2] == 0x70 && sums[0] == 15 + 8 + 7 + 8 + 7 && offsets[0] == 127);
  out = {reinterpret_cast<std::byte*>(packed), norms};
  encode(Element::bits, bytes(x.data()), 2, 5, 20, 0, out, pool);
  CHECK(packed[0] == 0b11010000 && packed[1] == 0b11111000);
}
