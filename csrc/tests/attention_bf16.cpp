// attention_bf16 and attention_paged_bf16 are as near to double precision as weights in bfloat16 allow; they have the same
// bits at every level with a fused multiply-add, whatever else is in the batch, and however the prompt was cut.
#include "tests/attention_cases.h"

using namespace weft;
using namespace weft::test;

using Shape = AttentionShape;
using Inputs = AttentionInputs;
static const Shape kShapes[] = {{1, 1, 1}, {2, 2, 15}, {4, 2, 16}, {9, 3, 20}, {3, 3, 32}, {20, 1, 33},
                                {4, 2, 64}, {3, 1, 80}, {2, 2, 128},
                                {6, 6, 32, 0, false, 0, false, true}, {4, 1, 20, 0, false, 0, false, true}};
static const Shape kPagedShapes[] = {{1, 1, 1, 0, true},   {9, 3, 20, 0, true},        {20, 1, 33, 0, true},
                                     {4, 2, 80, 40, true}, {2, 1, 64, 1, true},        {3, 1, 128, 300, true},
                                     {6, 2, 32, 0, true, 2.5}, {3, 3, 17, 40, true, 50},
                                     {6, 2, 64, 40, true, 0, true}, {20, 1, 33, 0, true, 2.5, true}};

static std::vector<Attr> scaled(const Shape& c, bool rounded = false) {
  return {{"scale", c.scale()}, {"rounded", rounded ? 1.0 : 0.0}};
}

// The values rounded to bfloat16, as 16 bits each.
static std::vector<uint16_t> narrow(const Floats& a) {
  std::vector<uint16_t> bits(a.size());
  for (size_t i = 0; i < a.size(); ++i) bits[i] = float_to_bf16_normal(a[i]);
  return bits;
}
static Operand narrow_operand(const Floats& like, std::vector<uint16_t>& bits) {
  Operand operand = like.operand();
  operand.data = reinterpret_cast<std::byte*>(bits.data()), operand.dtype = DType::bf16;
  return operand;
}

TEST(attention_bf16_agrees_with_double_precision_on_rounded_operands) {
  for (const Shape& c : kShapes) {
    Inputs x(c, {0, 1, 1, 34, 67});
    check_op("attention_bf16", x.operands(c, false), x.q.shape(), 1, scaled(c), attention_reference(c, x, true), 3e-3);
  }
}

TEST(attention_bf16_takes_texts_of_more_than_one_block_of_keys) {
  for (const bool biased : {false, true}) {
    const Shape c{2, 1, 33, 0, false, 0, false, biased};
    Inputs x(c, {0, 3, 560});
    check_op("attention_bf16", x.operands(c, false), x.q.shape(), 1, scaled(c), attention_reference(c, x, true), 3e-3);
  }
}

TEST(attention_bf16_of_far_and_of_equal_scores_is_exact) {
  const Shape c{1, 1, 32};
  Inputs x(c, {0, 3, 1100});
  for (size_t i = 0; i < x.q.size(); ++i) x.q[i] = 100, x.k[i] = i < 96 ? -100.0f - float(i / 32) : 1, x.v[i] = 2;
  // The first text's scores lie 566 apart: all weight is on its first key. The second's are equal, its values too.
  for (size_t i = 0; i < 32; ++i) x.v[i] = 3;
  check_op("attention_bf16", x.operands(), x.q.shape(), 1, scaled(c),
           map(x.q.size(), [](size_t i) { return i < 96 ? 3.0 : 2.0; }), 0);
}

TEST(attention_bf16_is_the_same_alone_as_in_a_batch) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present()) continue;
      Inputs x(c, {0, 5, 40, 40, 41, c.dim == 20 ? 600 : 120});
      Floats together(x.q.shape(), 1), alone(x.q.shape(), 1);
      run_kernel(level, "attention_bf16", x.operands(c, false), {together.operand()}, scaled(c), 3);
      for (size_t b = 0; b + 1 < x.segments.size(); ++b) {
        const int32_t begin = x.segments[b], end = x.segments[b + 1];
        Ints own = ints({0, end - begin});
        auto part = [&](const Floats& a) { return slice(a, begin, end); };
        std::vector<Operand> in = x.operands(c, false);
        in[0] = part(x.q), in[1] = part(x.k), in[2] = part(x.v), in[3] = own.operand();
        run_kernel(level, "attention_bf16", in, {part(alone)}, scaled(c));
      }
      CHECK(same_bits(together, alone));
    }
}

TEST(attention_bf16_takes_and_gives_rounded_values_too) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present()) continue;
      Inputs x(c, {0, 5, 40, 40, 41, 120});
      std::vector<uint16_t> q = narrow(x.q), k = narrow(x.k), v = narrow(x.v), got(x.q.size());
      for (auto [values, bits] : {std::pair{&x.q, &q}, std::pair{&x.k, &k}, std::pair{&x.v, &v}})
        for (size_t i = 0; i < bits->size(); ++i) (*values)[i] = bf16_to_float((*bits)[i]);
      Floats want(x.q.shape(), 1), wide(x.q.shape(), 1);
      const std::vector<Operand> rounded{narrow_operand(x.q, q), narrow_operand(x.k, k), narrow_operand(x.v, v),
                                         x.segments.operand()};
      run_kernel(level, "attention_bf16", x.operands(), {want.operand()}, scaled(c), 2);
      run_kernel(level, "attention_bf16", rounded, {wide.operand()}, scaled(c), 2);
      run_kernel(level, "attention_bf16", rounded, {narrow_operand(x.q, got)}, scaled(c, true), 2);
      CHECK(same_bits(want, wide));
      CHECK(got == narrow(want));
    }
}

TEST(attention_paged_bf16_agrees_with_double_precision_on_rounded_operands) {
  for (const Shape& c : kPagedShapes)
    for (DType dtype : {DType::f16, DType::bf16, DType::i8, DType::i8r}) {
      Inputs x(c, {0, 45, 600}), rounded = x;
      round_to(dtype, rounded.k), round_to(dtype, rounded.v);
      const std::vector<double> want = attention_reference(c, rounded, true, dtype == DType::i8 || dtype == DType::i8r);
      std::vector<Floats> fused;
      for (const Level& level : levels()) {
        if (!level.present()) continue;
        Floats got = attend_in_chunks(level, "attention_paged_bf16", c, x, dtype, 500, 1);
        CHECK(error_of(got, want) < (dtype == DType::i8r ? 0x1p-7 : 0x1p-8));  // there queries are rotated, then rounded
        if (fuses(level)) fused.push_back(got);
      }
      for (const Floats& result : fused) CHECK(same_bits(fused.front(), result));
    }
}

TEST(attention_paged_bf16_has_the_same_bits_however_the_prompt_is_cut) {
  for (const Level& level : levels())
    for (const Shape& c : kPagedShapes) {
      if (!level.present()) continue;
      Inputs x(c, {0, 45, c.dim == 128 ? 600 : 330});
      auto attend = [&](DType dtype, int32_t chunk) {
        return attend_in_chunks(level, "attention_paged_bf16", c, x, dtype, chunk, chunk % 3 + 1);
      };
      for (DType dtype : {DType::i8, DType::i8r, DType::i4r}) {
        const Floats codes = attend(dtype, 1000);
        for (int32_t chunk : {1, 3, 50, 270}) CHECK(same_bits(codes, attend(dtype, chunk)));
      }
      const Floats once = attend(DType::bf16, 1000);  // which rounds as the op does
      for (int32_t chunk : {1, 40}) CHECK(same_bits(once, attend(DType::bf16, chunk)));
      for (int32_t chunk : {1, 40, 1000}) CHECK(same_bits(once, attend(DType::f32, chunk)));
      round_to(DType::f16, x.k), round_to(DType::f16, x.v);
      const Floats want = attend(DType::f32, 1000);
      for (int32_t chunk : {1, 3, 32, 50, 270, 1000}) CHECK(same_bits(want, attend(DType::f16, chunk)));
    }
}

TEST(the_last_token_sees_in_a_state_what_it_sees_without_one) {
  for (const Level& level : levels()) {
    if (!level.present()) continue;
    for (const Shape& c : kShapes) {
      const Shape paged{c.heads, c.kv_heads, c.dim, 0, true};
      Inputs x(c, {0, 45, 350});
      Floats whole(x.q.shape(), 1);
      run_kernel(level, "attention_bf16", x.operands(), {whole.operand()}, scaled(c));
      Floats in_state = attend_in_chunks(level, "attention_paged_bf16", paged, x, DType::f32, 1000, 2);
      const size_t row = size_t(c.heads * c.dim);
      for (size_t last : {44u, 349u})
        CHECK(std::memcmp(whole.data() + last * row, in_state.data() + last * row, row * sizeof(float)) == 0);
    }
  }
}
