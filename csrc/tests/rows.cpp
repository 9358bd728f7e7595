// take_rows, pool and rope at every level agree with double precision; rope has the same bits at all of them, and so have
// rotations by its table.
#include "core/state.h"
#include "core/words.h"
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

TEST(take_rows_copies_rows) {
  for (int64_t dim : {1, 17, 64}) {
    Floats x = normal({6, dim}, 1, 1);
    Ints rows = ints({5, 0, 0, 3});
    const size_t d = static_cast<size_t>(dim);
    check_op("take_rows", {x.operand(), rows.operand()}, {4, dim}, 1, {},
             map(4 * d, [&](size_t i) { return x[static_cast<size_t>(rows[i / d]) * d + i % d]; }), 0);
  }
}

static double pooled(PoolMode mode, const Floats& x, size_t begin, size_t end, size_t dim, size_t c) {
  if (begin == end) return 0;
  if (mode == PoolMode::first) return x[begin * dim + c];
  if (mode == PoolMode::last) return x[(end - 1) * dim + c];
  double total = 0, weighted = 0, weights = 0, top = -INFINITY;
  for (size_t t = begin; t < end; ++t) {
    const double value = x[t * dim + c], weight = static_cast<double>(t - begin + 1);
    total += value, weighted += weight * value, weights += weight, top = std::max(top, value);
  }
  if (mode == PoolMode::weightedmean) return weighted / weights;
  if (mode == PoolMode::mean_sqrt_len) return total / std::sqrt(static_cast<double>(end - begin));
  return mode == PoolMode::mean ? total / static_cast<double>(end - begin) : top;
}

TEST(pool_gives_one_row_per_sequence_and_zeros_for_an_empty_one) {
  Ints segments = ints({0, 3, 3, 4, 41});
  for (int mode = 0; mode <= static_cast<int>(PoolMode::weightedmean); ++mode)
    for (int64_t dim : {1, 15, 17, 300}) {
      Floats x = normal({41, dim}, 1, 1);
      const size_t d = static_cast<size_t>(dim);
      std::vector<Operand> in{x.operand(), segments.operand()};
      check_op("pool", in, {4, dim}, 1, {{"mode", double(mode)}}, map(4 * d, [&](size_t i) {
                 auto at = [&](size_t b) { return static_cast<size_t>(segments[b]); };
                 return pooled(static_cast<PoolMode>(mode), x, at(i / d), at(i / d + 1), d, i % d);
               }), 1e-6);
    }
}

// The angle is an f32 product; everything after it is exact here.
static double roped(const Floats& x, size_t i, size_t dim, const Floats& inv_freq, int32_t position, bool interleaved,
                    double scale) {
  const size_t pairs = inv_freq.size(), c = i % dim;
  if (c >= 2 * pairs) return x[i];
  const size_t pair = interleaved ? c / 2 : c % pairs;
  const bool second = interleaved ? c % 2 : c >= pairs;
  const size_t step = interleaved ? 1 : pairs;
  const double angle = static_cast<float>(position) * inv_freq[pair];
  const double cosine = std::cos(angle) * scale, sine = std::sin(angle) * scale;
  return second ? x[i] * cosine + x[i - step] * sine : x[i] * cosine - x[i + step] * sine;
}

TEST(rope_turns_by_exact_angles_at_any_position) {
  Ints positions = ints({0, 1, 2, 77, 4095, 131071, 1000003, 2000000000});
  for (auto [dim, pairs] : {std::pair<int64_t, int64_t>{2, 1}, {20, 10}, {64, 32}, {80, 16}, {67, 33}})
    for (bool interleaved : {false, true})
      for (double scale : {1.0, 1.3}) {
        Floats x = normal({8, 3, dim}, 1, 1), inv_freq({pairs});
        for (int64_t i = 0; i < pairs; ++i)
          inv_freq[static_cast<size_t>(i)] = static_cast<float>(std::pow(10000.0, -double(i) / double(pairs)));
        const size_t d = static_cast<size_t>(dim);
        std::vector<Operand> in{x.operand(), positions.operand(), inv_freq.operand()};
        check_op("rope", in, {8, 3, dim}, 1, {{"interleaved", double(interleaved)}, {"scale", scale}},
                 map(x.size(), [&](size_t i) {
                   return roped(x, i, d, inv_freq, positions[i / (3 * d)], interleaved, scale);
                 }), 3e-7);
        Floats first({8, 3, dim});  // of the scalar level: the others give its bits
        for (const Level& level : levels()) {
          if (!level.present()) continue;
          Floats place = x, apart({8, 3, dim});
          std::vector<Attr> attrs{{"interleaved", double(interleaved)}, {"scale", scale}};
          run_kernel(level, "rope", in, {apart.operand()}, attrs);
          run_kernel(level, "rope", {place.operand(), in[1], in[2]}, {place.operand()}, attrs);
          CHECK(same_bits(place, apart));
          if (!fuses(level)) first = apart;
          CHECK(same_bits(first, apart));
        }
      }
}

// A step of two sequences through rope, rope and kv_write, and through rope_table and rope_write: q in place.
static void check_rope_write(const Level& level, DType dtype, bool interleaved, int64_t pairs, int workers) {
  constexpr int64_t tokens = 70, heads = 6, groups = 3, dim = 40;
  Floats q = normal({tokens, heads, dim}, 1, 1), k = normal({tokens, groups, dim}, 2), v = normal({tokens, groups, dim}, 3);
  Floats inv_freq({pairs}), table({tokens, 2 * pairs}), turned_q({tokens, heads, dim}), turned_k({tokens, groups, dim});
  for (int64_t i = 0; i < pairs; ++i) inv_freq[size_t(i)] = 1.0f / float(1 + i * i);
  Ints positions({tokens}), segments = ints({0, 45, 70}), pages({2, 3});
  for (int32_t t = 0; t < tokens; ++t) positions[size_t(t)] = t < 45 ? t + 40 : t - 45;
  for (int32_t i = 0; i < 6; ++i) pages[size_t(i)] = 5 - i;
  KvState apart(dtype, 6, groups, dim), fused(dtype, 6, groups, dim);
  Operand one, other;
  one.state = &apart, other.state = &fused;
  const Operand at = positions.operand(), from = segments.operand(), where = pages.operand();
  const Attr scale{"scale", 1.5}, kind{"interleaved", double(interleaved)};
  run_kernel(level, "rope", {q.operand(), at, inv_freq.operand()}, {turned_q.operand()}, {scale, kind});
  run_kernel(level, "rope", {k.operand(), at, inv_freq.operand()}, {turned_k.operand()}, {scale, kind});
  run_kernel(level, "kv_write", {turned_k.operand(), v.operand(), one, at, from, where}, {}, {});
  run_kernel(level, "rope_table", {at, inv_freq.operand()}, {table.operand()}, {scale}, workers);
  run_kernel(level, "rope_turn", {k.operand(), table.operand()}, {k.operand()}, {kind}, workers);
  CHECK(same_bits(k, turned_k));
  k = normal({tokens, groups, dim}, 2);
  run_kernel(level, "rope_write", {q.operand(), k.operand(), v.operand(), table.operand(), other, at, from, where},
             {q.operand()}, {kind}, workers);
  CHECK(same_bits(q, turned_q));
  CHECK(std::memcmp(apart.key, fused.key, 6 * apart.page_bytes()) == 0);
}

TEST(rope_by_a_table_into_the_state_has_the_bits_of_three_ops) {
  for (const Level& level : levels())
    if (level.present())
      for (DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::i8r, DType::i4r})
        for (bool interleaved : {false, true})
          for (int64_t pairs : {20, 17})
            for (int workers : {1, 3}) check_rope_write(level, dtype, interleaved, pairs, workers);
}
