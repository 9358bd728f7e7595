// attention_cases: shapes, operands and the double-precision reference of attention, and how a prompt is read in chunks.
#pragma once
#include "core/half.h"
#include "core/state.h"
#include "tests/arrays.h"

namespace weft::test {

struct AttentionShape {
  int64_t heads, kv_heads, dim, window = 0;
  bool causal = false;
  double softcap = 0;
  bool sinks = false, biased = false;
  double scale() const { return static_cast<float>(1 / std::sqrt(double(dim))); }
  bool sees(int64_t query, int64_t key) const {
    if (causal && key > query) return false;
    return window == 0 || std::abs(query - key) < window;
  }
};

struct AttentionInputs {
  Floats q, k, v;
  Ints segments;
  Floats sinks, bias, buckets;  // read where the shape says so; distances up to 20 have five buckets
  AttentionInputs(const AttentionShape& c, std::initializer_list<int32_t> ends)
      : q(normal({*(ends.end() - 1), c.heads, c.dim}, 1, 1)), k(normal({*(ends.end() - 1), c.kv_heads, c.dim}, 2, 1)),
        v(normal({*(ends.end() - 1), c.kv_heads, c.dim}, 3, 1)), segments(ints(ends)),
        sinks(normal({c.heads}, 4, 1, 3)), bias(normal({5, c.heads}, 5, 1)), buckets({41}, 1) {
    for (size_t i = 0; i < buckets.size(); ++i) buckets[i] = static_cast<float>(i * 7 % 5);
  }
  std::vector<Operand> operands() const { return {q.operand(), k.operand(), v.operand(), segments.operand()}; }
  std::vector<Operand> operands(const AttentionShape& c, bool with_sinks = true) const {
    std::vector<Operand> all = operands();
    if (with_sinks) all.push_back(c.sinks ? sinks.operand() : Operand{});
    all.push_back(c.biased ? bias.operand() : Operand{});
    all.push_back(c.biased ? buckets.operand() : Operand{});
    return all;
  }
  double bias_at(int64_t head, int64_t distance) const {
    const auto bucket = static_cast<int64_t>(buckets[size_t(std::clamp<int64_t>(distance, -20, 20) + 20)]);
    return bias[size_t(bucket * bias.shape()[1] + head)];
  }
};

// Rows of `dim` times Walsh's matrix of the largest power of two in dim, divided by its root; T decides the rounding of sums.
template <class T>
void rotate_rows(T* a, size_t count, size_t dim) {
  const size_t size = dim & (~dim + 1);
  const T by = T(1) / std::sqrt(T(size));
  for (size_t i = 0; i < count; ++i) a[i] *= by;
  for (size_t half = 1; half < size; half *= 2)
    for (size_t i = 0; i < count; ++i) {
      if (i / half % 2) continue;
      const T low = a[i] + a[i + half], high = a[i] - a[i + half];
      a[i] = low, a[i + half] = high;
    }
}

// The numbers that a state of this type holds for a [tokens, heads, dim].
inline void round_to(DType dtype, Floats& a) {
  const size_t dim = static_cast<size_t>(a.shape()[2]);
  if (dtype == DType::i8r) {
    rotate_rows(a.data(), a.size(), dim);
    round_to(DType::i8, a);
    std::vector<double> wide(a.data(), a.data() + a.size());
    rotate_rows(wide.data(), wide.size(), dim);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(wide[i]);
    return;
  }
  float top = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (i % dim == 0) top = 0;
    if (i % dim == 0) for (size_t c = 0; c < dim; ++c) top = std::max(top, std::abs(a[i + c]));
    if (dtype == DType::f16) a[i] = half_to_float(float_to_half(a[i]));
    if (dtype == DType::bf16) a[i] = bf16_to_float(float_to_bf16_normal(a[i]));
    const float scale = bit_cast<float>((bit_cast<uint32_t>(top / 127.0f) + 0xFFFFu) & 0xFFFF0000u);
    if (dtype == DType::i8) a[i] = std::nearbyint(a[i] * (1.0f / scale)) * scale;
  }
}

// With `bf16` q * scale * log2 e, k and v are rounded first; in a state of codes the codes of k and v
// are rounded, which changes none of them.
inline std::vector<double> attention_reference(const AttentionShape& c, const AttentionInputs& x, bool bf16,
                                               bool codes = false) {
  const float by = bf16 ? static_cast<float>(c.scale()) * 1.44269504f : 1.0f;
  const double scale = bf16 ? std::log(2.0) : c.scale();
  auto query = [=](float a) { return double(bf16 ? bf16_to_float(float_to_bf16_normal(a)) : a); };
  auto value = [=](float a) { return codes ? double(a) : query(a); };
  std::vector<double> out(x.q.size());
  for (size_t b = 0; b + 1 < x.segments.size(); ++b)
    for (int64_t t = x.segments[b]; t < x.segments[b + 1]; ++t)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t g = h / (c.heads / c.kv_heads);
        const float* q = x.q.data() + (t * c.heads + h) * c.dim;
        std::vector<double> scores;
        double top = c.sinks ? double(x.sinks[size_t(h)]) : -INFINITY, total = 0;
        for (int64_t s = x.segments[b]; s < x.segments[b + 1]; ++s) {
          const float* k = x.k.data() + (s * c.kv_heads + g) * c.dim;
          double score = 0;
          for (int64_t i = 0; i < c.dim; ++i) score += query(q[i] * by) * value(k[i]);
          score *= scale;
          if (c.softcap > 0) score = c.softcap * std::tanh(score / c.softcap);
          if (c.biased) score += x.bias_at(h, s - t);
          scores.push_back(c.sees(t, s) ? score : -INFINITY);
          top = std::max(top, scores.back());
        }
        if (c.sinks) total = std::exp(x.sinks[size_t(h)] - top);
        for (double& score : scores) total += score = std::exp(score - top);
        for (size_t s = 0; s < scores.size(); ++s)
          for (int64_t i = 0; i < c.dim; ++i)
            out[static_cast<size_t>((t * c.heads + h) * c.dim + i)] +=
                scores[s] / total * value(x.v.data()[((x.segments[b] + int64_t(s)) * c.kv_heads + g) * c.dim + i]);
      }
  return out;
}

// Two sequences read into a state whose pages lie in no order, `chunk` tokens of each at a time.
inline Floats attend_in_chunks(const Level& level, const char* op, const AttentionShape& c, const AttentionInputs& x,
                               DType dtype, int32_t chunk, int workers) {
  const int64_t batch = 2, pages_each = (x.q.shape()[0] + kPage - 1) / kPage;
  KvState state(dtype, 2 * batch * pages_each, c.kv_heads, c.dim);
  std::memset(state.memory->data(), 0xFF, state.memory->size());  // NaN in every slot that was never written
  Operand kv;
  kv.state = &state;
  Ints pages({batch, pages_each});
  for (int32_t i = 0; i < batch * pages_each; ++i) pages[size_t(i)] = int32_t((i * 7 + 3) % state.pages);

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
    std::vector<Operand> in = {q.operand(), kv, where[0], where[1], where[2]};
    if (c.sinks) in.push_back(x.sinks.operand());
    run_kernel(level, op, in, {y.operand()},
               {{"scale", c.scale()}, {"window", double(c.window)}, {"softcap", c.softcap}}, workers);
    copy(out.data(), y.data(), c.heads * c.dim, true);
  }
}

}  // namespace weft::test
