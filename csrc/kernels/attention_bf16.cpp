// attention_bf16: every token attends to all tokens of its own sequence, in bfloat16 with float32 sums.
//
// Meaning  weft/ops/attention.py
// Layout   q, out [T, H, D], k, v [T, G, D] contiguous, H a multiple of G, D at most 128; segments i32 [B+1]; out may be q
// Method   a task is a span of rows (query heads of tokens) of one sequence and key/value head; keys go in blocks of 512.
//          All is transposed, a lane is a row: scores = K qᵀ and out = Vᵀ p, so that maxima, exponentials and sums of 16
//          rows go lane by lane. Both are products of bfloat16 in matmul_bf16's order, 32 keys or channels a step; keys
//          and channels that are missing in the last step are zeros. q is scaled before it is rounded, so that weights
//          are powers of two: p = 2^(score - top)
// Bound    exponentials, one per row and key, and the matrix unit
#include "core/half.h"
#include "kernels/attention_task.h"
#if defined(WEFT_ISA_amx)
#include "simd/tiles.h"
#include "simd/transpose.h"
#endif

namespace weft::ISA {

constexpr int64_t kLanes = 16, kKeys = 512;
constexpr int64_t kStep = 32;  // of a product's sums: columns of a and rows of b
constexpr int64_t kMaxDim = 128;
constexpr float kLowest = -3.40282347e38f;  // below every score; finite, so that differences of maxima are never NaN

constexpr int64_t up_to(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Where the rows of a tile, at most 16, lie in q and in the result.
struct Places {
  int64_t at[kLanes], count;
};

#if defined(WEFT_ISA_amx)

using Rounded = uint16_t;
constexpr int64_t kSpan = 512;  // rows of a task

// c [16 R][16] = a [16 R][depth] b [depth][16], a's rows `stride` apart, b in pairs.
template <int R>
static void multiply_tiles(const Rounded* a, int64_t stride, const Rounded* b, int64_t depth, float* c) {
  const int64_t row_bytes = stride * 2, tile = 16 * stride;
  settle_stores();
  _tile_zero(0);
  if constexpr (R > 1) _tile_zero(1);
  if constexpr (R > 2) _tile_zero(2);
  if constexpr (R > 3) _tile_zero(3);
  for (int64_t k = 0; k < depth; k += kStep) {
    _tile_loadd(4, b + k * 16, 64);
    _tile_loadd(5, a + k, row_bytes);
    _tile_dpbf16ps(0, 5, 4);
    if constexpr (R > 1) _tile_loadd(6, a + tile + k, row_bytes);
    if constexpr (R > 1) _tile_dpbf16ps(1, 6, 4);
    if constexpr (R > 2) _tile_loadd(7, a + 2 * tile + k, row_bytes);
    if constexpr (R > 2) _tile_dpbf16ps(2, 7, 4);
    if constexpr (R > 3) _tile_loadd(5, a + 3 * tile + k, row_bytes);
    if constexpr (R > 3) _tile_dpbf16ps(3, 5, 4);
  }
  _tile_stored(0, c, 64);
  if constexpr (R > 1) _tile_stored(1, c + 256, 64);
  if constexpr (R > 2) _tile_stored(2, c + 512, 64);
  if constexpr (R > 3) _tile_stored(3, c + 768, 64);
}

// c [rows][16] = a [rows][depth] b [depth][16], rows, at most 64, rounded up to 16.
static void multiply(const Rounded* a, int64_t stride, int64_t rows, const Rounded* b, int64_t depth, float* c) {
  if (rows > 48) multiply_tiles<4>(a, stride, b, depth, c);
  else if (rows > 32) multiply_tiles<3>(a, stride, b, depth, c);
  else if (rows > 16) multiply_tiles<2>(a, stride, b, depth, c);
  else multiply_tiles<1>(a, stride, b, depth, c);
}

// Sums of 16 C channels, carried in tmm0 to tmm3 from begin_sums to end_sums.
template <int C>
WEFT_INLINE void begin_sums(const float* out) {
  settle_stores();
  _tile_loadd(0, out, 64);
  if constexpr (C > 1) _tile_loadd(1, out + 256, 64);
  if constexpr (C > 2) _tile_loadd(2, out + 512, 64);
  if constexpr (C > 3) _tile_loadd(3, out + 768, 64);
}

// One step: 32 keys' values [16 C][kKeys] times their weights.
template <int C>
WEFT_INLINE void add_step(const Rounded* value, const Rounded* weights, float*) {
  settle_stores();
  _tile_loadd(4, weights, 64);
  _tile_loadd(5, value, kKeys * 2);
  _tile_dpbf16ps(0, 5, 4);
  if constexpr (C > 1) _tile_loadd(6, value + 16 * kKeys, kKeys * 2);
  if constexpr (C > 1) _tile_dpbf16ps(1, 6, 4);
  if constexpr (C > 2) _tile_loadd(7, value + 32 * kKeys, kKeys * 2);
  if constexpr (C > 2) _tile_dpbf16ps(2, 7, 4);
  if constexpr (C > 3) _tile_loadd(5, value + 48 * kKeys, kKeys * 2);
  if constexpr (C > 3) _tile_dpbf16ps(3, 5, 4);
}

template <int C>
WEFT_INLINE void end_sums(float* out) {
  _tile_stored(0, out, 64);
  if constexpr (C > 1) _tile_stored(1, out + 256, 64);
  if constexpr (C > 2) _tile_stored(2, out + 512, 64);
  if constexpr (C > 3) _tile_stored(3, out + 768, 64);
}

WEFT_INLINE __m512i as_bits(__m512bh v) { return reinterpret_cast<const __m512i&>(v); }

// 32 channels of a row from `channel` on, times `scale`, as bfloat16.
WEFT_INLINE __m512i round_channels(const float* row, int64_t channel, int64_t dim, f32x16 scale) {
  const f32x16 low = load_n(row + channel, larger(0, dim - channel)) * scale;
  const f32x16 high = load_n(row + channel + 16, larger(0, dim - channel - 16)) * scale;
  return as_bits(_mm512_cvtne2ps_pbh(high.v, low.v));
}

// 16 rows of q, transposed: [deep / 2][16][2].
static void pack_queries(Rounded* to, const float* q, const Places& rows_at, int64_t dim, int64_t deep, float scale) {
  for (int64_t c = 0; c < deep; c += kStep, to += kStep * kLanes) {
    __m512i rows[16];
    for (int64_t i = 0; i < rows_at.count; ++i) rows[i] = round_channels(q + rows_at.at[i], c, dim, splat(scale));
    for (int64_t i = rows_at.count; i < 16; ++i) rows[i] = _mm512_setzero_si512();
    transpose(rows);
    for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * 32, rows[i]);
  }
}

WEFT_INLINE void pack_key(Rounded* to, const float* key, int64_t dim, int64_t deep) {
  for (int64_t c = 0; c < deep; c += kStep) _mm512_store_si512(to + c, round_channels(key, c, dim, splat(1.0f)));
}

// 16 keys' values, of which `count` are there: to [wide][kKeys].
static void pack_values(Rounded* to, const float* value, int64_t stride, int64_t count, int64_t dim, int64_t wide) {
  for (int64_t c = 0; c < wide; c += 16) {
    __m512i rows[16];
    for (int64_t j = 0; j < count; ++j) rows[j] = _mm512_castps_si512(load_n(value + j * stride + c, dim - c).v);
    for (int64_t j = larger(0, count); j < 16; ++j) rows[j] = _mm512_setzero_si512();
    if (count > 0) transpose(rows);
    for (int64_t i = 0; i < 16; ++i) {
      const __m256bh narrow = _mm512_cvtneps_pbh(_mm512_castsi512_ps(rows[i]));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + (c + i) * kKeys), reinterpret_cast<const __m256i&>(narrow));
    }
  }
}

// The weights of two keys for 16 rows: the upper halves, as pairs.
WEFT_INLINE void store_weights(Rounded* to, f32x16 first, f32x16 second) {
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first.v), 16);
  _mm512_store_si512(to, _mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_castps_si512(second.v)));
}
WEFT_INLINE f32x16 add_half_unit(f32x16 x) {
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x8000)))};
}

// out [wide][16] / total, as rows.
static void unpack_rows(const float* out, f32x16 total, float* result, const Places& rows_at, int64_t dim) {
  const f32x16 by = splat(1.0f) / total;
  for (int64_t c = 0; c < dim; c += 16) {
    __m512i rows[16];
    for (int64_t i = 0; i < 16; ++i) rows[i] = _mm512_castps_si512((load(out + (c + i) * kLanes) * by).v);
    transpose(rows);
    for (int64_t i = 0; i < rows_at.count; ++i)
      store_n(result + rows_at.at[i] + c, {_mm512_castsi512_ps(rows[i])}, dim - c);
  }
}

#else

using Rounded = float;  // of bfloat16 precision
constexpr int64_t kSpan = 256;

WEFT_INLINE void shape_whole_tiles() {}

// One step of a product: c [n][16] += a [n][32] b [32][16].
template <int n>
WEFT_INLINE void add_rows(const Rounded* a, int64_t stride, const Rounded* b, float* c) {
  f32x16 even[n], odd[n];
#pragma GCC unroll 4
  for (int i = 0; i < n; ++i) even[i] = zero(), odd[i] = zero();
  for (int64_t k = 0; k < kStep; k += 2) {
    const f32x16 first = load(b + k * kLanes), second = load(b + (k + 1) * kLanes);
#pragma GCC unroll 4
    for (int i = 0; i < n; ++i) {
      even[i] = fma(splat(a[i * stride + k]), first, even[i]);
      odd[i] = fma(splat(a[i * stride + k + 1]), second, odd[i]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < n; ++i) store(c + i * kLanes, load(c + i * kLanes) + (even[i] + odd[i]));
}

static void multiply(const Rounded* a, int64_t stride, int64_t rows, const Rounded* b, int64_t depth, float* c) {
  fill(c, rows * kLanes, [](auto) { return zero(); });
  for (int64_t k = 0; k < depth; k += kStep) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) add_rows<4>(a + row * stride + k, stride, b + k * kLanes, c + row * kLanes);
    for (; row < rows; ++row) add_rows<1>(a + row * stride + k, stride, b + k * kLanes, c + row * kLanes);
  }
}

template <int C>
WEFT_INLINE void begin_sums(const float*) {}
template <int C>
WEFT_INLINE void add_step(const Rounded* value, const Rounded* weights, float* out) {
  for (int64_t c = 0; c < 16 * C; c += 4) add_rows<4>(value + c * kKeys, kKeys, weights, out + c * kLanes);
}
template <int C>
WEFT_INLINE void end_sums(float*) {}

WEFT_INLINE Rounded rounded(float value) { return bf16_to_float(float_to_bf16_normal(value)); }

static void pack_queries(Rounded* to, const float* q, const Places& rows_at, int64_t dim, int64_t deep, float scale) {
  fill(to, deep * kLanes, [](auto) { return zero(); });
  for (int64_t i = 0; i < rows_at.count; ++i)
    for (int64_t c = 0; c < dim; ++c) to[c * kLanes + i] = rounded(q[rows_at.at[i] + c] * scale);
}

WEFT_INLINE void pack_key(Rounded* to, const float* key, int64_t dim, int64_t deep) {
  for (int64_t c = 0; c < dim; ++c) to[c] = rounded(key[c]);
  for (int64_t c = dim; c < deep; ++c) to[c] = 0;
}

static void pack_values(Rounded* to, const float* value, int64_t stride, int64_t count, int64_t dim, int64_t wide) {
  for (int64_t c = 0; c < wide; ++c)
    for (int64_t j = 0; j < 16; ++j) to[c * kKeys + j] = c < dim && j < count ? rounded(value[j * stride + c]) : 0;
}

WEFT_INLINE void store_weights(Rounded* to, f32x16 first, f32x16 second) {
  store(to, first);
  store(to + kLanes, second);
  for (int64_t i = 0; i < 2 * kLanes; ++i) to[i] = bit_cast<float>(bit_cast<uint32_t>(to[i]) & 0xFFFF0000u);
}
WEFT_INLINE f32x16 add_half_unit(f32x16 x) {
  alignas(64) float lane[kLanes];
  store(lane, x);
  for (float& value : lane) value = bit_cast<float>(bit_cast<uint32_t>(value) + 0x8000u);
  return load(lane);
}

static void unpack_rows(const float* out, f32x16 total, float* result, const Places& rows_at, int64_t dim) {
  const f32x16 by = splat(1.0f) / total;
  alignas(64) float channel[kLanes];
  for (int64_t c = 0; c < dim; ++c) {
    store(channel, load(out + c * kLanes) * by);
    for (int64_t i = 0; i < rows_at.count; ++i) result[rows_at.at[i] + c] = channel[i];
  }
}

#endif

// A task's memory. deep and wide: D rounded up to a step and to a vector.
struct Span {
  int64_t dim, deep, wide, keys;  // keys: of the present block
  float scale;                    // of queries
  Rounded *q, *key, *value, *weights;  // [tile][deep][16], [kKeys][deep], [wide][kKeys], [kKeys][16]
  float *scores, *out, *top, *total;   // [kKeys][16], [tile][wide][16], [tile][16], [tile][16]
};

WEFT_INLINE Span new_span(const Worker& worker, int64_t dim, float scale) {
  Span span{dim, up_to(dim, kStep), up_to(dim, kLanes), 0, scale * 1.44269504f, nullptr, nullptr, nullptr, nullptr,
            nullptr, nullptr, nullptr, nullptr};
  std::byte* free = worker.scratch;
  auto take = [&]<class T>(T*& to, int64_t count) {
    to = reinterpret_cast<T*>(free);
    free += count * static_cast<int64_t>(sizeof(T));
  };
  take(span.q, kSpan * span.deep);
  take(span.key, kKeys * span.deep);
  take(span.value, kKeys * span.wide);
  take(span.weights, kKeys * kLanes);
  take(span.scores, kKeys * kLanes);
  take(span.out, kSpan * span.wide);
  take(span.top, kSpan);
  take(span.total, kSpan);
  if (free > worker.scratch + kScratchBytes) __builtin_trap();  // dim is checked when the program is made
  return span;
}

// Block of keys from `key` on; steps are filled up with zeros.
static void pack_block(Span& span, const float* key, const float* value, int64_t stride, int64_t count) {
  span.keys = count;
  const int64_t whole = up_to(count, kStep);
  for (int64_t j = 0; j < count; ++j) pack_key(span.key + j * span.deep, key + j * stride, span.dim, span.deep);
  for (int64_t i = count * span.deep; i < whole * span.deep; ++i) span.key[i] = 0;
  for (int64_t j = 0; j < whole; j += 16)
    pack_values(span.value + j, value + j * stride, stride, smaller(16, count - j), span.dim, span.wide);
}

// Scores of a tile with the present block of keys; returns the largest of each row.
static f32x16 score(const Span& span, const Rounded* q) {
  f32x16 top = splat(kLowest);
  for (int64_t j = 0; j < span.keys; j += 64) {
    const int64_t count = smaller(64, span.keys - j);
    float* scores = span.scores + j * kLanes;
    multiply(span.key + j * span.deep, span.deep, count, q, span.deep, scores);
    for (int64_t i = 0; i < count; ++i) top = max(top, load(scores + i * kLanes));
  }
  return top;
}

// Sums of the weights of the even and of the odd keys.
struct Totals {
  f32x16 even, odd;
};

// From scores to weights, of one step's keys from j on; those beyond the last weigh nothing. Weights are rounded to
// bfloat16, nearest, by half a unit added and the lower half cut.
WEFT_INLINE void weigh_step(const Span& span, int64_t j, f32x16 top, Totals& totals) {
  const float* scores = span.scores + j * kLanes;
  Rounded* weights = span.weights + j * kLanes;
  const int64_t count = smaller(kStep, span.keys - j);
  int64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    const f32x16 first = exp2_coarse(load(scores + i * kLanes) - top);
    const f32x16 second = exp2_coarse(load(scores + (i + 1) * kLanes) - top);
    totals.even = totals.even + first;
    totals.odd = totals.odd + second;
    store_weights(weights + i * kLanes, add_half_unit(first), add_half_unit(second));
  }
  if (i < count) {
    const f32x16 last = exp2_coarse(load(scores + i * kLanes) - top);
    totals.even = totals.even + last;
    store_weights(weights + i * kLanes, add_half_unit(last), zero());
    i += 2;
  }
  for (; i < kStep; i += 2) store_weights(weights + i * kLanes, zero(), zero());
}

// Weights and, a step behind them, their product with 16 C channels of the values from `channel` on. While the matrix
// unit multiplies one step, the vector units weigh the next.
template <int C>
static void add_values(const Span& span, int64_t channel, f32x16 top, Totals* totals, float* out) {
  const Rounded* value = span.value + channel * kKeys;
  out += channel * kLanes;
  begin_sums<C>(out);
  for (int64_t j = 0; j < span.keys; j += kStep) {
    if (totals) weigh_step(span, j, top, *totals);
    if (j) add_step<C>(value + j - kStep, span.weights + (j - kStep) * kLanes, out);
  }
  const int64_t last = up_to(span.keys, kStep) - kStep;
  add_step<C>(value + last, span.weights + last * kLanes, out);
  end_sums<C>(out);
}

// All channels, 64 at a time; the first ones' turn makes the weights. Returns the sums of these.
static f32x16 add_all_values(const Span& span, f32x16 top, float* out) {
  Totals totals{zero(), zero()};
  for (int64_t channel = 0; channel < span.wide; channel += 64) {
    Totals* wanted = channel == 0 ? &totals : nullptr;
    switch (smaller(64, span.wide - channel) / 16) {
      case 1: add_values<1>(span, channel, top, wanted, out); break;
      case 2: add_values<2>(span, channel, top, wanted, out); break;
      case 3: add_values<3>(span, channel, top, wanted, out); break;
      default: add_values<4>(span, channel, top, wanted, out);
    }
  }
  return totals.even + totals.odd;
}

// One tile of 16 rows past the present block of keys. Before the first block out and total are 0, top the lowest.
static void attend_tile(const Span& span, int64_t tile) {
  float *out = span.out + tile * span.wide * kLanes, *top = span.top + tile * kLanes, *total = span.total + tile * kLanes;
  const f32x16 before = load(top), now = max(before, score(span, span.q + tile * span.deep * kLanes));
  const f32x16 factor = exp2_coarse(before - now);
  store(top, now);
  fill(out, span.wide * kLanes, [&](auto at) { return at(out) * factor; });
  const f32x16 sums = add_all_values(span, now, out);
  store(total, fma(load(total), factor, sums));
}

// Rows [first, first + count) of a task. Row r is the query head r % share of the token r / share, of a head's group.
WEFT_INLINE Places places(int64_t first, int64_t count, int64_t share, int64_t origin, int64_t heads, int64_t dim) {
  Places places;
  places.count = count;
  int64_t token = first / share, member = first % share;
  for (int64_t i = 0; i < count; ++i) {
    places.at[i] = origin + (token * heads + member) * dim;
    if (++member == share) member = 0, ++token;
  }
  return places;
}

KERNEL(attention_bf16) {
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], kv_heads = call.in[1].dim[1];
  const int64_t share = heads / kv_heads, stride = kv_heads * dim, batch = call.in[3].cols() - 1;
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const int32_t* segments = call.in[3].as<int32_t>();
  float* result = call.out[0].as<float>();
  if (dim > kMaxDim) __builtin_trap();  // the op's shape rule refuses it
  Span span = new_span(worker, dim, static_cast<float>(call.number("scale")));
  shape_whole_tiles();

  deal_spans(worker, segments, batch, kv_heads, share, kSpan, [&](SpanTask task) {
    const int64_t start = segments[task.sequence], length = segments[task.sequence + 1] - start;
    const int64_t origin = (start * heads + task.head * share) * dim;
    auto in_tiles = [&](auto f) {
      for (int64_t row = 0; row < task.count; row += kLanes)
        f(row, places(task.first + row, smaller(kLanes, task.count - row), share, origin, heads, dim));
    };
    in_tiles([&](int64_t row, const Places& rows) { pack_queries(span.q + row * span.deep, q, rows, dim, span.deep, span.scale); });
    fill(span.out, up_to(task.count, kLanes) * span.wide, [](auto) { return zero(); });
    fill(span.total, up_to(task.count, kLanes), [](auto) { return zero(); });
    fill(span.top, up_to(task.count, kLanes), [](auto) { return splat(kLowest); });
    for (int64_t first = 0; first < length; first += kKeys) {
      const int64_t from = ((start + first) * kv_heads + task.head) * dim;
      pack_block(span, k + from, v + from, stride, smaller(kKeys, length - first));
      for (int64_t row = 0; row < task.count; row += kLanes) attend_tile(span, row / kLanes);
    }
    in_tiles([&](int64_t row, const Places& rows) {
      unpack_rows(span.out + row * span.wide, load(span.total + row), result, rows, dim);
    });
  });
}

}  // namespace weft::ISA
