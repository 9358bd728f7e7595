// attention_tiles: the arithmetic of attention in bfloat16, shared by `attention_bf16` and `attention_paged_bf16`, so that
// the same keys give the same bits in both.
//
// A row is one query head of one token; a span is a set of rows that read the same key/value head, in tiles of 16. It is
// taken past the keys in blocks of kKeys, aligned to position 0, carrying per row the largest score so far, the sums of the
// weights and the unnormalised output. q is scaled before it is rounded, so that weights are powers of two:
// p = 2^(score - top). scores = q kᵀ and out = p v are products of bfloat16 with float32 sums in matmul_bf16's order, 32
// channels or keys a step: what the matrix unit does, and what the other levels do with vectors. A lane is a key, so that
// few rows cost little; keys that a row does not see have the weight zero, and change none of its sums.
#pragma once
#include "kernels/attention_bias.h"
#include "kernels/attention_sums.h"
#include "kernels/attention_task.h"

namespace weft::ISA {

constexpr int64_t kKeys = 256;  // of a block
constexpr int64_t kMaxDim = 128;
constexpr float kLowest = -3.40282347e38f;  // a hidden score; finite, so that differences of maxima are never NaN
constexpr float kHidden = -3e38f;           // below: hidden. A NaN is not
static_assert(kStep == kPage);

// A task's memory. deep and wide: D rounded up to a step and to a vector.
struct Span {
  int64_t rows, dim, deep, wide;
  int64_t shaped;         // rows that the matrix unit is configured for
  float scale, softcap;   // in powers of two; softcap 0: none
  int64_t* at;            // where a row lies in q and in the result
  int32_t *begin, *end;   // keys a row sees, as positions
  bool alike;             // every row sees the same ones
  Rounded *q, *key;       // [tile][deep / 32] left tiles, [kKeys / 16][deep / 32] right ones
  Rounded *value, *weights;  // [kKeys / 32][wide / 16] right tiles, [kKeys / 32] left ones
  float *scores, *out;    // [kKeys / 16][16 rows][16], [tile][wide / 16][16 rows][16]
  float *top, *total;     // [rows], [rows][16]
  float *key_scale, *value_scale;  // [kKeys] of the present block where its elements are codes; else null
  float* turned;                   // a query, where rows are rotated; else null
  int8_t *expanded_keys, *expanded_values;  // [kKeys * dim] of codes of 4 bits; else null
  Lines lines{};          // in powers of two
};

WEFT_INLINE Span new_span(const Worker& worker, int64_t dim, float scale, float softcap, DType state = DType::f32,
                          const Lines& lines = {}) {
  Span span{};
  span.dim = dim, span.deep = up_to(dim, kStep), span.wide = up_to(dim, kLanes);
  span.scale = scale * kLog2E, span.softcap = softcap * kLog2E;
  Pieces pieces{worker.scratch};
  pieces.take(span.q, kSpan * span.deep);
  pieces.take(span.key, kKeys * span.deep);
  pieces.take(span.value, kKeys * span.wide);
  pieces.take(span.weights, kKeys * kLanes);
  pieces.take(span.scores, kKeys * kLanes);
  pieces.take(span.out, kSpan * span.wide);
  pieces.take(span.top, kSpan);
  pieces.take(span.total, kSpan * kLanes);
  pieces.take(span.at, kSpan);
  pieces.take(span.begin, kSpan);
  pieces.take(span.end, kSpan);
  if (KvState::is_scaled(state)) pieces.take(span.key_scale, kKeys), pieces.take(span.value_scale, kKeys);
  if (KvState::is_rotated(state)) pieces.take(span.turned, span.wide);
  if (state == DType::i4r) pieces.take(span.expanded_keys, kKeys * up_to(dim, 2)), pieces.take(span.expanded_values, kKeys * dim);
  span.lines = lines;
  if (lines.bias) pieces.take(span.lines.first, lines.size());
  if (pieces.free > worker.scratch + kScratchBytes) __builtin_trap();  // dim is checked when the program is made
  return span;
}

// The heads before a row's in q and in the result, of a sequence whose first token is `begin`.
WEFT_INLINE int64_t place_of(const SpanTask& task, int64_t row, int64_t begin, int64_t heads, int64_t share) {
  const int64_t r = task.first + row;
  return (begin + r / share) * heads + task.head * share + r % share;
}

// Up to 16 elements of a row, and of a result.
WEFT_INLINE f32x16 read_n(const float* p, int64_t n) { return load_n(p, n); }
[[maybe_unused]] WEFT_INLINE f32x16 read_n(const uint16_t* p, int64_t n) { return load_bf16_n(p, n); }
WEFT_INLINE void write_n(float* p, f32x16 x, int64_t n) { store_n(p, x, n); }
[[maybe_unused]] WEFT_INLINE void write_n(uint16_t* p, f32x16 x, int64_t n) { store_rounded_n(p, x, n); }

template <class T>
constexpr bool is_float = false;
template <>
constexpr bool is_float<float> = true;

// Loads the queries of all rows, rotated where keys are, and resets the sums.
template <class In>
static void start_rows(const Span& span, const In* q) {
  const f32x16 scale = splat(span.scale);
  for (int64_t row = 0; row < span.rows; ++row) {
    const int64_t tile = row / kLanes * kLanes, lane = row % kLanes;
    const In* from = q + span.at[row];
    if constexpr (is_float<In>)
      if (span.turned) walsh_row(span.turned, from, rotation(span.dim)), from = span.turned;
    Rounded* to = span.q + tile * span.deep + lane * kStep;
    for (int64_t c = 0; c < span.deep; c += kStep)
      store_row(to + c * kLanes, read_n(from + c, larger(0, span.dim - c)) * scale,
                read_n(from + c + kLanes, larger(0, span.dim - c - kLanes)) * scale);
    for (int64_t c = 0; c < span.wide; c += kLanes) store(span.out + tile * span.wide + (c + lane) * kLanes, zero());
    store(span.total + row * kLanes, zero());
  }
  fill(span.top, up_to(span.rows, kLanes), [](auto) { return splat(kLowest); });
}

// Lets each row begin with its head's sink, a logit without a value; head_of(row) is the query head.
template <class HeadOf>
WEFT_INLINE void begin_with_sinks(const Span& span, const float* sinks, HeadOf head_of) {
  for (int64_t row = 0; row < span.rows; ++row)
    span.top[row] = sinks[head_of(row)] * kLog2E, span.total[row * kLanes] = 1;
}

// A tile's keys within a block: those that any row sees, in whole steps, and those that all rows see.
struct Edges {
  int64_t begin, end, clear_begin, clear_end;
  WEFT_INLINE bool clear(int64_t step) const { return clear_begin <= step && step + kStep <= clear_end; }
};
WEFT_INLINE Edges edges_of(const Span& span, int64_t first, int64_t rows, int64_t start) {
  Edges edges{kKeys, 0, 0, kKeys};
  for (int64_t row = first; row < first + (span.alike ? 1 : rows); ++row) {
    const int64_t begin = span.begin[row] - start, end = span.end[row] - start;
    edges = {smaller(edges.begin, begin), larger(edges.end, end), larger(edges.clear_begin, begin),
             smaller(edges.clear_end, end)};
  }
  edges.begin = larger(0, edges.begin) / kStep * kStep;
  edges.end = smaller(kKeys, up_to(edges.end, kStep));
  return edges;
}

// Whether keys and values are read in place or from tiles.
template <class Tiles>
constexpr bool kInPlace = requires(Tiles tiles) { tiles.key_rows(0, 0); };

// Scores of 16 T keys.
template <int T>
WEFT_INLINE void score(const Span& span, const Rounded* q, const Rounded* keys, float* scores, int64_t rows) {
  zero_sums<T>(scores);
  for (int64_t c = 0; c < span.deep; c += kStep)
    add_step<T>(q + c * kLanes, keys + c * kLanes, kLanes * span.deep, scores, rows);
  end_sums<T>(scores);
}

#if defined(WEFT_ISA_amx)
// The same for heads of one step: sums of 32 keys are stored while those of the next are made.
template <class Tiles>
WEFT_INLINE void score_one_step(const Rounded* q, const Edges& edges, Tiles tiles, float* scores) {
  settle_stores();
  _tile_loadd(4, q, 64);
  for (int64_t key = edges.begin;;) {
    const Rounded* keys = tiles.keys(key, kStep);
    settle_stores();
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(5, keys, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, keys + kTile, 64);
    _tile_dpbf16ps(1, 4, 6);
    settle_stores();
    if (key > edges.begin) end_other_sums(scores + (key - kStep) * kLanes);
    if ((key += kStep) >= edges.end) return end_sums<2>(scores + (key - kStep) * kLanes);
    keys = tiles.keys(key, kStep);
    settle_stores();
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(7, keys, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, keys + kTile, 64);
    _tile_dpbf16ps(3, 4, 5);
    settle_stores();
    end_sums<2>(scores + (key - kStep) * kLanes);
    if ((key += kStep) >= edges.end) return end_other_sums(scores + (key - kStep) * kLanes);
  }
}
#endif

// Scores of all keys between the edges.
template <class Tiles>
WEFT_INLINE void score_keys(const Span& span, const Rounded* q, int64_t rows, const Edges& edges, Tiles tiles) {
#if defined(WEFT_ISA_amx)
  if (span.deep == kStep) return score_one_step(q, edges, tiles, span.scores);
#else
  if constexpr (kInPlace<Tiles>) {
    for (int64_t key = edges.begin; key < edges.end; key += kLanes) {
      float* scores = span.scores + key * kLanes;
      fill(scores, rows * kLanes, [](auto) { return zero(); });
      for (int64_t c = 0; c < span.dim; c += kStep) add_all_rows(q + c * kLanes, tiles.key_rows(key, c), scores, rows);
    }
    return;
  }
#endif
  int64_t key = edges.begin;
  for (; key + 2 * kStep <= edges.end; key += 2 * kStep)
    score<4>(span, q, tiles.keys(key, 2 * kStep), span.scores + key * kLanes, rows);
  if (key < edges.end) score<2>(span, q, tiles.keys(key, kStep), span.scores + key * kLanes, rows);
}

// Hides those of the 32 keys at `start` + `key` that a row does not see.
static void hide(const Span& span, int64_t first, int64_t rows, int64_t start, int64_t key) {
  alignas(64) static constexpr float lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 low = load(lane), high = low + splat(16.0f), hidden = splat(kLowest);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = span.begin[first + row] - start - key, to = span.end[first + row] - start - key;
    const f32x16 begin = splat(static_cast<float>(from)), end = splat(static_cast<float>(to));
    float* scores = span.scores + (key + row) * kLanes;
    store(scores, where_less(low, begin, hidden, where_less(low, end, load(scores), hidden)));
    scores += 256;
    store(scores, where_less(high, begin, hidden, where_less(high, end, load(scores), hidden)));
  }
}

// Scores with codes as those with the keys themselves.
static void scale_scores(const Span& span, int64_t rows, const Edges& edges) {
  for (int64_t key = edges.begin; key < edges.end; key += kLanes) {
    const f32x16 by = load(span.key_scale + key);
    float* scores = span.scores + key * kLanes;
    for (int64_t row = 0; row < rows; ++row) store(scores + row * kLanes, load(scores + row * kLanes) * by);
  }
}

// Adds the biases of a tile's rows to their scores with the block at `start`.
static void add_bias(const Span& span, int64_t first, int64_t rows, int64_t start, const Edges& edges) {
  for (int64_t i = 0; i < rows; ++i) {
    const Lines::Row row = span.lines.row(first + i);
    for (int64_t key = edges.begin; key < edges.end; key += kLanes) {
      float* scores = span.scores + (key + i) * kLanes;
      store(scores, load(scores) + load(row.at(start + key)));
    }
  }
}

// All scores of a tile with the present block, capped, biased and hidden; then each row's largest goes to `most`.
template <class Tiles>
WEFT_INLINE void score_block(const Span& span, int64_t first, int64_t rows, int64_t start, const Edges& edges,
                             Tiles tiles, float* most) {
  score_keys(span, span.q + first * span.deep, rows, edges, tiles);
  if (span.key_scale) scale_scores(span, rows, edges);
  if (span.softcap > 0) {
    float* scores = span.scores + edges.begin * kLanes;
    const f32x16 cap = splat(span.softcap);
    fill(scores, (edges.end - edges.begin) * kLanes, [&](auto at) { return cap * tanh(at(scores) / cap); });
  }
  if (span.lines.first) add_bias(span, first, rows, start, edges);
  for (int64_t key = edges.begin; key < edges.end; key += kStep)
    if (!edges.clear(key)) hide(span, first, rows, start, key);
  for (int64_t row = 0; row < rows; ++row) {
    const float* scores = span.scores + row * kLanes;
    f32x16 low = splat(kLowest), high = low;
    for (int64_t key = edges.begin; key < edges.end; key += kStep) {
      low = max(low, load(scores + key * kLanes));
      high = max(high, load(scores + key * kLanes + 256));
    }
    most[row] = max_lane(max(low, high));
  }
}

// From scores to weights, of one step's keys. Those of codes take the values' scales.
template <bool all, bool scaled>
WEFT_INLINE void weigh_step(const Span& span, int64_t key, int64_t rows, const float* top, float* total) {
  const float* scores = span.scores + key * kLanes;
  Rounded* weights = span.weights + key * kLanes;
  for (int64_t row = 0; row < rows; ++row) {
    const f32x16 most = splat(top[row]), low = load(scores + row * kLanes), high = load(scores + row * kLanes + 256);
    f32x16 first = exp2_coarse(low - most), second = exp2_coarse(high - most);
    if constexpr (!all) {
      first = where_less(low, splat(kHidden), zero(), first);
      second = where_less(high, splat(kHidden), zero(), second);
    }
    store(total + row * kLanes, load(total + row * kLanes) + (first + second));
    if constexpr (scaled) {
      first = first * load(span.value_scale + key);
      second = second * load(span.value_scale + key + kLanes);
    }
    store_row(weights + row * kStep, first, second);
  }
}
template <bool all>
WEFT_INLINE void weigh_step(const Span& span, int64_t key, int64_t rows, const float* top, float* total) {
  if (span.value_scale) return weigh_step<all, true>(span, key, rows, top, total);
  weigh_step<all, false>(span, key, rows, top, total);
}

// Weights and their product with 16 C channels of the values from `channel` on. While the matrix unit multiplies one
// step, the vector units weigh the next. Without `total` the weights exist already.
template <int C, class Tiles>
WEFT_INLINE void add_values(const Span& span, int64_t channel, int64_t rows, const Edges& edges, Tiles tiles,
                            const float* top, float* total, float* out) {
  out += channel * kLanes;
  begin_sums<C>(out);
  for (int64_t key = edges.begin; key < edges.end; key += kStep) {
    if (total && edges.clear(key)) weigh_step<true>(span, key, rows, top, total);
    else if (total) weigh_step<false>(span, key, rows, top, total);
    if constexpr (kInPlace<Tiles>) {
      for (int c = 0; c < C; ++c)
        add_all_rows(span.weights + key * kLanes, tiles.value_rows(key, channel + c * kLanes), out + c * 256, rows);
    } else {
      add_step<C>(span.weights + key * kLanes, tiles.values(key, channel, C * kLanes), kTile, out, rows);
    }
  }
  end_sums<C>(out);
}

// All channels, 64 at a time; the first ones' turn makes the weights.
template <class Tiles>
WEFT_INLINE void add_all_values(const Span& span, int64_t rows, const Edges& edges, Tiles tiles, const float* top,
                                float* total, float* out) {
  for (int64_t channel = 0; channel < span.wide; channel += 64) {
    switch (smaller(64, span.wide - channel) / 16) {
      case 1: add_values<1>(span, channel, rows, edges, tiles, top, total, out); break;
      case 2: add_values<2>(span, channel, rows, edges, tiles, top, total, out); break;
      case 3: add_values<3>(span, channel, rows, edges, tiles, top, total, out); break;
      default: add_values<4>(span, channel, rows, edges, tiles, top, total, out);
    }
    total = nullptr;
  }
}

// Multiplies the sums of each row, made under a lower maximum, by the row's factor. Sums of zero are skipped.
WEFT_INLINE void lower(const Span& span, int64_t rows, const float* factor, float* total, float* out) {
  for (int64_t row = 0; row < rows; ++row) {
    const f32x16 by = splat(factor[row]);
    store(total + row * kLanes, load(total + row * kLanes) * by);
    for (int64_t c = 0; c < span.wide; c += kLanes) {
      float* sums = out + (c + row) * kLanes;
      store(sums, load(sums) * by);
    }
  }
}

// One tile past the present block of keys, whose first one is at `start`.
template <class Tiles>
static void attend_tile(const Span& span, int64_t first, int64_t rows, int64_t start, Tiles tiles) {
  const Edges edges = edges_of(span, first, rows, start);
  if (edges.begin >= edges.end) return;
  float *top = span.top + first, *total = span.total + first * kLanes, *out = span.out + first * span.wide;
  alignas(64) float most[kLanes], factor[kLanes];
  store(most, splat(kLowest));
  score_block(span, first, rows, start, edges, tiles, most);
  const f32x16 before = load(top), now = max(before, load(most));
  store(factor, exp2_coarse(before - now));
  store(top, now);
  if (max_lane(before) != kLowest) lower(span, rows, factor, total, out);
  add_all_values(span, rows, edges, tiles, top, total, out);
}

// A block that was packed before it met its rows.
struct Packed {
  const Rounded *key, *value;
  int64_t deep, wide;
  WEFT_INLINE const Rounded* keys(int64_t at, int64_t) const { return key + at * deep; }
  WEFT_INLINE const Rounded* values(int64_t at, int64_t channel, int64_t) const {
    return value + at * wide + channel * kStep;
  }
};

// The present block past all rows.
template <class Tiles>
WEFT_INLINE void attend_block(Span& span, int64_t start, Tiles tiles) {
  for (int64_t first = 0; first < span.rows; first += kLanes) {
    const int64_t rows = smaller(kLanes, span.rows - first), shape = span.alike ? kLanes : rows;
    if (shape != span.shaped) shape_tiles(span.shaped = shape);  // too costly for the last rows of a text
    attend_tile(span, first, rows, start, tiles);
  }
}

// Divides by the sums, copies out, and rotates back.
template <class Out>
static void finish_rows(const Span& span, Out* result) {
  for (int64_t row = 0; row < span.rows; ++row) {
    const f32x16 by = splat(1.0f / sum(load(span.total + row * kLanes)));
    const float* out = span.out + row / kLanes * kLanes * span.wide + row % kLanes * kLanes;
    for (int64_t c = 0; c < span.dim; c += kLanes)
      write_n(result + span.at[row] + c, load(out + c * kLanes) * by, span.dim - c);
    if constexpr (is_float<Out>)
      if (span.turned) walsh_row(result + span.at[row], result + span.at[row], rotation(span.dim));
  }
}

}  // namespace weft::ISA
