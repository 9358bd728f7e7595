// attention_block: the arithmetic of attention, shared by `attention` and `attention_paged`, so that the same keys give
// the same bits in both.
//
// A row is one query head of one token. A span is a set of rows that read the same key/value head; it goes through the
// keys block by block (kPage keys, aligned to position 0), carrying per row the largest score so far, the sum of the
// exponentials and the unnormalised output. Within a span, rows go in tiles of 16, one lane each for what is one number
// per row, and a tile in groups that fit the registers. Every row sees the same operations in any tile and group.
#pragma once
#include "kernels/attention_bias.h"
#include "kernels/attention_task.h"
#include "kernels/state_elements.h"

namespace weft::ISA {

constexpr int64_t kTile = 16;
constexpr int64_t kSpanRows = 256;
// Rows whose 2 x 16 accumulators fit the registers: 32 of 64 bytes, or 16 of 32 bytes; at NEON whose 16 do, and whose
// numbers lie in one register.
#if defined(WEFT_ISA_avx512)
constexpr int kGroup = 8;
#elif defined(WEFT_ISA_neon)
constexpr int kGroup = 4;
#else
constexpr int kGroup = 2;
#endif
constexpr float kLowest = -3.40282347e38f;  // below every score; finite, so that differences of maxima are never NaN

template <int rows>
struct Group {};

// Calls f(Group<n>{}, row) for groups of kGroup rows, then for one group of what is left.
template <int n, class F>
WEFT_INLINE void last_group(int64_t rows, int64_t row, F f) {
  if (rows - row == n) return f(Group<n>{}, row);
  if constexpr (n > 1) last_group<n - 1>(rows, row, f);
}
template <class F>
WEFT_INLINE void in_groups(int64_t rows, F f) {
  int64_t row = 0;
  for (; row + kGroup <= rows; row += kGroup) f(Group<kGroup>{}, row);
  last_group<kGroup - 1>(rows, row, f);
}

// One block of keys and values: key [dim][kPage], value [kPage] rows of dim, `stride` elements apart; scales [kPage] where
// the elements are codes.
template <class T>
struct Block {
  const T *key, *value;
  int64_t stride;
  const float *key_scale = nullptr, *value_scale = nullptr;
};

struct Span {
  int64_t rows, dim, padded;  // padded: dim rounded up to 16
  float scale, softcap;       // softcap 0: none
  float* q;             // per tile and group [dim][rows of the group]
  float* out;           // [rows][padded]
  float *top, *total;   // [rows rounded up to 16]
  int32_t *begin, *end; // keys a row sees, as positions
  float* scores;        // [kTile][kPage], of one tile and block
  float* key;           // [dim][kPage], for a block that has to be transposed first
  Lines lines{};
};

// Rows per span: kSpanRows, or fewer when the heads are so large that the scratch is short. `more`: floats taken beside.
WEFT_INLINE int64_t span_rows(int64_t dim, int64_t more = 0) {
  const int64_t floats = static_cast<int64_t>(kScratchBytes / sizeof(float)) - more;
  const int64_t fixed = (dim + kTile) * kPage + 8 * kTile;
  return smaller(kSpanRows, (floats - fixed) / (2 * dim + kTile + 4));
}

WEFT_INLINE Span new_span(const Worker& worker, int64_t rows, int64_t dim, float scale, float softcap,
                          const Lines& lines = {}) {
  const int64_t padded = (dim + 15) / 16 * 16, lanes = (rows + 15) / 16 * 16;
  float* free = reinterpret_cast<float*>(worker.scratch);
  auto take = [&](int64_t count) { return (free += count) - count; };
  Span span{rows, dim, padded, scale, softcap, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  span.key = take(dim * kPage);
  span.scores = take(kTile * kPage);
  span.out = take(rows * padded);
  span.top = take(lanes);
  span.total = take(lanes);
  span.begin = reinterpret_cast<int32_t*>(take(lanes));
  span.end = reinterpret_cast<int32_t*>(take(lanes));
  span.q = take(rows * dim);
  span.lines = lines;
  if (lines.bias) span.lines.first = take(lines.size());
  fill(span.out, rows * padded, [](auto) { return zero(); });
  fill(span.top, lanes, [](auto) { return splat(kLowest); });
  fill(span.total, lanes, [](auto) { return zero(); });
  return span;
}

// Lets each row begin with its head's sink, a logit without a value; head_of(row) is the query head.
template <class HeadOf>
WEFT_INLINE void begin_with_sinks(const Span& span, const float* sinks, HeadOf head_of) {
  for (int64_t row = 0; row < span.rows; ++row) span.top[row] = sinks[head_of(row)], span.total[row] = 1;
}

// Copies the queries in; from(row) is where a row's query lies.
template <class From>
WEFT_INLINE void pack_queries(const Span& span, From from) {
  for (int64_t first = 0; first < span.rows; first += kTile)
    in_groups(smaller(kTile, span.rows - first), [&]<int n>(Group<n>, int64_t row) {
      float* q = span.q + (first + row) * span.dim;
      for (int64_t i = 0; i < n; ++i) {
        const float* source = from(first + row + i);
        for (int64_t c = 0; c < span.dim; ++c) q[c * n + i] = source[c];
      }
    });
}

#if defined(WEFT_ISA_neon)
// A whole group: one half of the page after the other.
template <class T>
static void score_whole(float* scores, const float* q, const Block<T>& block, int64_t dim, float scale) {
  for (int64_t half = 0; half < kPage; half += 16) {
    f32x16 acc[4] = {zero(), zero(), zero(), zero()};
    for (int64_t c = 0; c < dim; ++c) {
      const f32x16 key = widen(block.key + c * kPage + half);
      const float32x4_t x = vld1q_f32(q + c * 4);
      acc[0] = fma_lane<0>(x, key, acc[0]);
      acc[1] = fma_lane<1>(x, key, acc[1]);
      acc[2] = fma_lane<2>(x, key, acc[2]);
      acc[3] = fma_lane<3>(x, key, acc[3]);
    }
    f32x16 by = splat(scale);
    if constexpr (kScaled<T>) by = by * load(block.key_scale + half);
    for (int i = 0; i < 4; ++i) store(scores + i * kPage + half, acc[i] * by);
  }
}
#endif

// scores [n][kPage] = q . k * scale, each one chain over the channels.
template <int n, class T>
static void score_group(float* scores, const float* q, const Block<T>& block, int64_t dim, float scale) {
#if defined(WEFT_ISA_neon)
  if constexpr (n == 4) return score_whole(scores, q, block, dim, scale);
#endif
  const T* key = block.key;
  f32x16 acc[n][2];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) acc[i][0] = acc[i][1] = zero();
  for (int64_t c = 0; c < dim; ++c) {
    const f32x16 low = widen(key + c * kPage), high = widen(key + c * kPage + 16);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const f32x16 x = splat(q[c * n + i]);
      acc[i][0] = fma(x, low, acc[i][0]);
      acc[i][1] = fma(x, high, acc[i][1]);
    }
  }
  f32x16 by[2] = {splat(scale), splat(scale)};
  if constexpr (kScaled<T>) by[0] = by[0] * load(block.key_scale), by[1] = by[1] * load(block.key_scale + 16);
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) {
    store(scores + i * kPage, acc[i][0] * by[0]);
    store(scores + i * kPage + 16, acc[i][1] * by[1]);
  }
}

// scores [n] = cap tanh(score / cap): none is beyond the cap.
WEFT_INLINE void cap_scores(float* scores, int64_t n, float cap) {
  const f32x16 most = splat(cap);
  fill(scores, n, [&](auto at) { return most * tanh(at(scores) / most); });
}

// Adds the biases of a tile's rows to their scores with the block at `start`.
[[maybe_unused]] static void add_bias(const Span& span, int64_t first, int64_t rows, int64_t start) {
  for (int64_t i = 0; i < rows; ++i) {
    float* scores = span.scores + i * kPage;
    const Lines::Row row = span.lines.row(first + i);
    for (int64_t key = 0; key < kPage; key += 16) store(scores + key, load(scores + key) + load(row.at(start + key)));
  }
}

// 16 * width channels of n rows: out = out * correction + weights . values, one key after another.
template <int n, int width, class T, class Load>
WEFT_INLINE void value_strip(float* out, int64_t padded, const float* weights, const float* correction, const T* value,
                             int64_t stride, int64_t begin, int64_t end, Load widen_at) {
  f32x16 acc[n][width];
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i)
    for (int w = 0; w < width; ++w) acc[i][w] = load(out + i * padded + 16 * w) * splat(correction[i]);
  int64_t j = begin;
#if defined(WEFT_ISA_neon)
  for (; n > 1 && j + 4 <= end; j += 4) {
    float32x4_t p[n];
    for (int i = 0; i < n; ++i) p[i] = vld1q_f32(weights + i * kPage + j);
    const auto add = [&]<int lane>(Group<lane>) {
      for (int w = 0; w < width; ++w) {
        const f32x16 v = widen_at(value + (j + lane) * stride + 16 * w);
#pragma GCC unroll 8
        for (int i = 0; i < n; ++i) acc[i][w] = fma_lane<lane>(p[i], v, acc[i][w]);
      }
    };
    add(Group<0>{}), add(Group<1>{}), add(Group<2>{}), add(Group<3>{});
  }
#endif
  for (; j < end; ++j) {
    f32x16 v[width];
    for (int w = 0; w < width; ++w) v[w] = widen_at(value + j * stride + 16 * w);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const f32x16 p = splat(weights[i * kPage + j]);
      for (int w = 0; w < width; ++w) acc[i][w] = fma(p, v[w], acc[i][w]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i)
    for (int w = 0; w < width; ++w) store(out + i * padded + 16 * w, acc[i][w]);
}

template <int n, class T>
static void value_group(float* out, const Span& span, const float* weights, const float* correction,
                        const Block<T>& block, int64_t begin, int64_t end) {
#if defined(WEFT_ISA_neon)
  constexpr int width = n == 1 ? 4 : n == 2 ? 2 : 1;
#else
  constexpr int width = 4 * n <= 2 * kGroup ? 4 : 2;  // few rows: more channels, to have enough chains in flight
#endif
  auto whole = [](const T* p) { return widen(p); };
  int64_t c = 0;
  for (; c + 16 * width <= span.dim; c += 16 * width)
    value_strip<n, width>(out + c, span.padded, weights, correction, block.value + c, block.stride, begin, end, whole);
  for (; c + 16 <= span.dim; c += 16)
    value_strip<n, 1>(out + c, span.padded, weights, correction, block.value + c, block.stride, begin, end, whole);
  if (c < span.dim) {
    auto part = [left = span.dim - c](const T* p) { return widen_n(p, left); };
    value_strip<n, 1>(out + c, span.padded, weights, correction, block.value + c, block.stride, begin, end, part);
  }
}

// The keys of the block at `start` that a row sees, as [begin, end) within the block.
struct Range {
  int64_t begin, end;
};
WEFT_INLINE Range visible(const Span& span, int64_t row, int64_t start) {
  return {larger(0, span.begin[row] - start), smaller(kPage, span.end[row] - start)};
}

// Sets scores that a row does not see to -inf, and returns the largest score.
WEFT_INLINE float mask_row(float* scores, Range seen) {
  alignas(64) static constexpr float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  f32x16 low = load(scores), high = load(scores + 16);
  if (seen.begin > 0 || seen.end < kPage) {
    const f32x16 hidden = splat(-__builtin_inff()), i = load(lane), j = load(lane) + splat(16.0f);
    const f32x16 begin = splat(static_cast<float>(seen.begin)), end = splat(static_cast<float>(seen.end));
    low = where_less(i, begin, hidden, where_less(i, end, low, hidden));
    high = where_less(j, begin, hidden, where_less(j, end, high, hidden));
    store(scores, low);
    store(scores + 16, high);
  }
  return max_lane(max(low, high));
}

// From scores to weights: the tile's new maxima, e^(score - maximum), and the sums. correction: the factor of the older sums and
// outputs. A row that sees nothing here keeps its numbers: its correction is 1 and its weights are 0.
// The weights of codes take the values' scales.
template <class T>
WEFT_INLINE void weigh_tile(const Span& span, int64_t first, int64_t rows, int64_t start, float* correction,
                            const Block<T>& block) {
  alignas(64) float block_top[kTile], block_total[kTile];
  store(block_top, splat(kLowest));
  store(block_total, zero());
  for (int64_t i = 0; i < rows; ++i)
    block_top[i] = mask_row(span.scores + i * kPage, visible(span, first + i, start));
  const f32x16 old = load(span.top + first), top = max(old, load(block_top)), factor = exp_negative(old - top);
  store(span.top + first, top);
  store(correction, factor);
  for (int64_t i = 0; i < rows; ++i) {
    float* scores = span.scores + i * kPage;
    const f32x16 row_top = splat(span.top[first + i]);
    const f32x16 low = exp_negative(load(scores) - row_top), high = exp_negative(load(scores + 16) - row_top);
    block_total[i] = sum(low + high);
    if constexpr (kScaled<T>) {
      store(scores, low * load(block.value_scale));
      store(scores + 16, high * load(block.value_scale + 16));
    } else {
      store(scores, low);
      store(scores + 16, high);
    }
  }
  store(span.total + first, fma(load(span.total + first), factor, load(block_total)));
}

// A group shares the loads of the values that all its rows see; the others, at the edges of a mask, each row takes alone, so
// that no value a row does not see is ever touched on its behalf. A row's keys go in order either way.
template <class T>
WEFT_INLINE void add_values(const Span& span, int64_t first, int64_t rows, int64_t start, const float* correction,
                            const Block<T>& block) {
  static constexpr float one[kTile] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  in_groups(rows, [&]<int n>(Group<n>, int64_t row) {
    float* out = span.out + (first + row) * span.padded;
    const float *weights = span.scores + row * kPage, *factor = correction + row;
    Range shared{0, kPage};
    int64_t until = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Range own = visible(span, first + row + i, start);
      shared = {larger(shared.begin, own.begin), smaller(shared.end, own.end)};
      until = larger(until, own.end);
    }
    const auto alone = [&](int64_t i, int64_t begin, int64_t end, const float* by) {
      value_group<1>(out + i * span.padded, span, weights + i * kPage, by, block, begin, end);
    };
    if (shared.begin >= shared.end) {
      for (int64_t i = 0; i < n; ++i) {
        const Range own = visible(span, first + row + i, start);
        if (own.begin < own.end) alone(i, own.begin, own.end, factor + i);
      }
      return;
    }
    bool before = false;  // some row begins sooner
    for (int64_t i = 0; i < n; ++i) before |= visible(span, first + row + i, start).begin < shared.begin;
    for (int64_t i = 0; before && i < n; ++i)
      alone(i, visible(span, first + row + i, start).begin, shared.begin, factor + i);
    value_group<n>(out, span, weights, before ? one : factor, block, shared.begin, shared.end);
    for (int64_t i = 0; shared.end < until && i < n; ++i) {
      const int64_t end = visible(span, first + row + i, start).end;
      if (shared.end < end) alone(i, shared.end, end, one);
    }
  });
}

template <class T>
WEFT_INLINE void attend_block(const Span& span, int64_t start, const Block<T>& block) {
  alignas(64) float correction[kTile];
  for (int64_t first = 0; first < span.rows; first += kTile) {
    const int64_t rows = smaller(kTile, span.rows - first);
    bool any = false;
    for (int64_t i = 0; i < rows; ++i) {
      const Range seen = visible(span, first + i, start);
      any |= seen.begin < seen.end;
    }
    if (!any) continue;
    in_groups(rows, [&]<int n>(Group<n>, int64_t row) {
      score_group<n>(span.scores + row * kPage, span.q + (first + row) * span.dim, block, span.dim, span.scale);
    });
    if (span.softcap > 0) cap_scores(span.scores, rows * kPage, span.softcap);
    if (span.lines.first) add_bias(span, first, rows, start);
    weigh_tile(span, first, rows, start, correction, block);
    add_values(span, first, rows, start, correction, block);
  }
}

// Takes the span past every block that one of its rows sees; block_at(n) is the block of positions n * kPage and on.
template <class BlockAt>
WEFT_INLINE void attend(const Span& span, BlockAt block_at) {
  int64_t begin = span.begin[0], end = span.end[0];
  for (int64_t row = 1; row < span.rows; ++row) {
    begin = smaller(begin, span.begin[row]);
    end = larger(end, span.end[row]);
  }
  for (int64_t n = begin / kPage; n * kPage < end; ++n) attend_block(span, n * kPage, block_at(n));
}

// Divides by the sums and copies out; to(row) is where a row's output goes.
template <class To>
WEFT_INLINE void finish(const Span& span, To to) {
  for (int64_t row = 0; row < span.rows; ++row) {
    const float* out = span.out + row * span.padded;
    const f32x16 total = splat(span.total[row]);
    fill(to(row), span.dim, [&](auto at) { return at(out) / total; });
  }
}

}  // namespace weft::ISA
