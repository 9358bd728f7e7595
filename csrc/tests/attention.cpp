// attention and attention_paged agree with double precision; and a token's result has the same bits whatever else is in
// the batch, however the prompt was cut, with or without a state, and for any number of workers.
#include "core/half.h"
#include "core/state.h"
#include "tests/arrays.h"

using namespace weft;
using namespace weft::test;

struct Shape {
  int64_t heads, kv_heads, dim, window;
  bool causal;
  double softcap = 0;
  double scale() const { return static_cast<float>(1 / std::sqrt(double(dim))); }
};
static const Shape kShapes[] = {
    {1, 1, 1, 0, true},    {2, 2, 15, 0, false},  {4, 2, 16, 0, true},   {9, 3, 20, 0, true},  {3, 3, 32, 0, false},
    {20, 1, 17, 0, true},  {4, 2, 80, 40, true},  {6, 2, 32, 7, false},  {2, 1, 64, 1, true},  {2, 1, 256, 0, true},
    {6, 2, 32, 40, true, 2.5}, {3, 3, 17, 0, false, 50},
};

struct Inputs {
  Floats q, k, v;
  Ints segments;
  Inputs(const Shape& c, std::initializer_list<int32_t> ends)
      : q(normal({*(ends.end() - 1), c.heads, c.dim}, 1, 1)), k(normal({*(ends.end() - 1), c.kv_heads, c.dim}, 2, 1)),
        v(normal({*(ends.end() - 1), c.kv_heads, c.dim}, 3, 1)), segments(ints(ends)) {}
};

static std::vector<Attr> attributes(const Shape& c) {
  return {{"causal", double(c.causal)}, {"scale", c.scale()}, {"window", double(c.window)}, {"softcap", c.softcap}};
}

static bool sees(const Shape& c, int64_t query, int64_t key) {
  if (c.causal && key > query) return false;
  return c.window == 0 || std::abs(query - key) < c.window;
}

static std::vector<double> reference(const Shape& c, const Inputs& x) {
  std::vector<double> out(x.q.size());
  for (size_t b = 0; b + 1 < x.segments.size(); ++b)
    for (int64_t t = x.segments[b]; t < x.segments[b + 1]; ++t)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t g = h / (c.heads / c.kv_heads);
        const float* q = x.q.data() + (t * c.heads + h) * c.dim;
        std::vector<double> scores;
        double top = -INFINITY, total = 0;
        for (int64_t s = x.segments[b]; s < x.segments[b + 1]; ++s) {
          double score = 0;
          for (int64_t i = 0; i < c.dim; ++i) score += double(q[i]) * x.k.data()[(s * c.kv_heads + g) * c.dim + i];
          score *= c.scale();
          if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
          scores.push_back(sees(c, t, s) ? score : -INFINITY);
          top = std::max(top, scores.back());
        }
        for (double& score : scores) total += score = std::exp(score - top);
        for (size_t s = 0; s < scores.size(); ++s)
          for (int64_t i = 0; i < c.dim; ++i)
            out[static_cast<size_t>((t * c.heads + h) * c.dim + i)] +=
                scores[s] / total * x.v.data()[((x.segments[b] + int64_t(s)) * c.kv_heads + g) * c.dim + i];
      }
  return out;
}

static Floats attend(const Level& level, const Shape& c, const Inputs& x, int workers = 1) {
  Floats out(x.q.shape(), 1);
  run_kernel(level, "attention", {x.q.operand(), x.k.operand(), x.v.operand(), x.segments.operand()}, {out.operand()},
             attributes(c), workers);
  return out;
}

TEST(attention_agrees_with_double_precision) {
  for (const Shape& c : kShapes) {
    Inputs x(c, {0, 1, 1, 34, 99, 131});
    check_op("attention", {x.q.operand(), x.k.operand(), x.v.operand(), x.segments.operand()}, x.q.shape(), 1,
             attributes(c), reference(c, x), 3e-6);
  }
}

TEST(a_sequence_attends_alone_as_in_a_batch) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present()) continue;
      Inputs x(c, {0, 5, 40, 40, 41, 320});  // the last is longer than a span of rows for every shape
      Floats together = attend(level, c, x, 3), alone(x.q.shape(), 1);
      for (size_t b = 0; b + 1 < x.segments.size(); ++b) {
        const int32_t begin = x.segments[b], end = x.segments[b + 1];
        Ints own = ints({0, end - begin});
        auto part = [&](const Floats& a) { return slice(a, begin, end); };
        run_kernel(level, "attention", {part(x.q), part(x.k), part(x.v), own.operand()}, {part(alone)}, attributes(c));
      }
      CHECK(same_bits(together, alone));
    }
}

// Two sequences read into a state whose pages lie in no order, `chunk` tokens of each at a time.
static Floats attend_in_chunks(const Level& level, const Shape& c, const Inputs& x, DType dtype, int32_t chunk,
                               int workers) {
  const int64_t pages_each = 5, batch = 2;
  KvState state(dtype, 2 * batch * pages_each, c.kv_heads, c.dim);
  std::memset(state.key.data(), 0xFF, state.key.size());  // NaN in every slot that was never written
  std::memset(state.value.data(), 0xFF, state.value.size());
  Operand kv;
  kv.state = &state;
  Ints pages({batch, pages_each});
  for (int32_t i = 0; i < batch * pages_each; ++i) pages[static_cast<size_t>(i)] = (i * 7 + 3) % 20;

  Floats out(x.q.shape(), 1);
  for (int32_t done = 0;; done += chunk) {
    int32_t begin[2], end[2], total = 0;
    for (size_t b = 0; b < 2; ++b) {
      begin[b] = std::min(x.segments[b] + done, x.segments[b + 1]);
      end[b] = std::min(begin[b] + chunk, x.segments[b + 1]);
      total += end[b] - begin[b];
    }
    if (total == 0) return out;
    Ints segments = ints({0, end[0] - begin[0], total}), positions({total}), from({total});
    Floats q({total, c.heads, c.dim}), k({total, c.kv_heads, c.dim}), v({total, c.kv_heads, c.dim}), y(q.shape());
    size_t n = 0;
    for (size_t b = 0; b < 2; ++b)
      for (int32_t t = begin[b]; t < end[b]; ++t, ++n) from[n] = t, positions[n] = t - x.segments[b];
    auto copy = [&](float* to, const float* source, int64_t width, bool back) {
      for (int64_t i = 0; i < total; ++i) {
        const int64_t whole = from[size_t(i)] * width, part = i * width;
        std::memcpy(to + (back ? whole : part), source + (back ? part : whole), size_t(width) * 4);
      }
    };
    copy(q.data(), x.q.data(), c.heads * c.dim, false);
    copy(k.data(), x.k.data(), c.kv_heads * c.dim, false);
    copy(v.data(), x.v.data(), c.kv_heads * c.dim, false);
    const Operand where[] = {positions.operand(), segments.operand(), pages.operand()};
    run_kernel(level, "kv_write", {k.operand(), v.operand(), kv, where[0], where[1], where[2]}, {}, {}, workers);
    run_kernel(level, "attention_paged", {q.operand(), kv, where[0], where[1], where[2]}, {y.operand()},
               {{"scale", c.scale()}, {"window", double(c.window)}, {"softcap", c.softcap}}, workers);
    copy(out.data(), y.data(), c.heads * c.dim, true);
  }
}

TEST(a_state_gives_the_bits_of_attention_without_one_however_the_prompt_is_cut) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present() || !c.causal) continue;
      Inputs x(c, {0, 45, 145});
      Floats want = attend(level, c, x);
      for (int32_t chunk : {1, 3, 32, 50, 1000})
        CHECK(same_bits(want, attend_in_chunks(level, c, x, DType::f32, chunk, chunk % 3 + 1)));
    }
}

TEST(a_half_precision_state_only_rounds_keys_and_values) {
  for (const Level& level : levels())
    for (const Shape& c : kShapes) {
      if (!level.present() || !c.causal) continue;
      Inputs x(c, {0, 45, 145});
      for (Floats* a : {&x.k, &x.v})
        for (size_t i = 0; i < a->size(); ++i) (*a)[i] = half_to_float(float_to_half((*a)[i]));
      Floats want = attend(level, c, x);
      for (int32_t chunk : {1, 40, 1000}) CHECK(same_bits(want, attend_in_chunks(level, c, x, DType::f16, chunk, 2)));
    }
}

TEST(a_long_context_needs_no_more_scratch) {
  const Shape c{2, 1, 16, 0, true};
  Inputs x(c, {0, 9000});
  const std::vector<double> uniform = [&] {  // equal keys: the result is the running mean of the values
    for (size_t i = 0; i < x.k.size(); ++i) x.k[i] = 1;
    std::vector<double> mean(x.q.size()), total(16);
    for (size_t t = 0; t < 9000; ++t)
      for (size_t i = 0; i < 16; ++i) {
        total[i] += x.v[t * 16 + i];
        mean[t * 32 + i] = mean[t * 32 + 16 + i] = total[i] / double(t + 1);
      }
    return mean;
  }();
  CHECK(error_of(attend(level_named(""), c, x, 2), uniform) < 1e-5);
}
