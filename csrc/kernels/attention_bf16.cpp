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

constexpr int64_t up_to(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

#if defined(WEFT_ISA_amx)

using Rounded = uint16_t;
constexpr int64_t kSpan = 512;  // rows of a task

// c [16 R][16] (+)= a [16 R][depth] b [depth][16], a's rows `stride` apart, b in pairs.
template <int R, bool add>
static void multiply_tiles(const Rounded* a, int64_t stride, const Rounded* b, int64_t depth, float* c) {
  const int64_t row_bytes = stride * 2, tile = 16 * stride;
  if constexpr (add) _tile_loadd(0, c, 64);
  else _tile_zero(0);
  if constexpr (R > 1 && add) _tile_loadd(1, c + 256, 64);
  else _tile_zero(1);
  if constexpr (R > 2 && add) _tile_loadd(2, c + 512, 64);
  else _tile_zero(2);
  if constexpr (R > 3 && add) _tile_loadd(3, c + 768, 64);
  else _tile_zero(3);
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

// c [rows][16] (+)= a [rows][depth] b [depth][16], rows rounded up to 16.
template <bool add>
static void multiply(const Rounded* a, int64_t stride, int64_t rows, const Rounded* b, int64_t depth, float* c) {
  for (; rows > 48; rows -= 64, a += 64 * stride, c += 1024) multiply_tiles<4, add>(a, stride, b, depth, c);
  if (rows > 32) multiply_tiles<3, add>(a, stride, b, depth, c);
  else if (rows > 16) multiply_tiles<2, add>(a, stride, b, depth, c);
  else if (rows > 0) multiply_tiles<1, add>(a, stride, b, depth, c);
}

WEFT_INLINE __m512i as_bits(__m512bh v) { return reinterpret_cast<const __m512i&>(v); }

// 32 channels of a row from `channel` on, times `scale`, as bfloat16.
WEFT_INLINE __m512i round_channels(const float* row, int64_t channel, int64_t dim, f32x16 scale) {
  const f32x16 low = load_n(row + channel, larger(0, dim - channel)) * scale;
  const f32x16 high = load_n(row + channel + 16, larger(0, dim - channel - 16)) * scale;
  return as_bits(_mm512_cvtne2ps_pbh(high.v, low.v));
}

// 16 rows of q, transposed: [deep / 2][16][2].
template <class From>
WEFT_INLINE void pack_queries(Rounded* to, From row_at, int64_t count, int64_t dim, int64_t deep, float scale) {
  for (int64_t c = 0; c < deep; c += kStep, to += kStep * kLanes) {
    __m512i rows[16];
    for (int64_t i = 0; i < 16; ++i)
      rows[i] = i < count ? round_channels(row_at(i), c, dim, splat(scale)) : _mm512_setzero_si512();
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
    for (int64_t j = 0; j < 16; ++j)
      rows[j] = j < count ? _mm512_castps_si512(load_n(value + j * stride + c, dim - c).v) : _mm512_setzero_si512();
    transpose(rows);
    for (int64_t i = 0; i < 16; ++i) {
      const __m256bh narrow = _mm512_cvtneps_pbh(_mm512_castsi512_ps(rows[i]));
      _mm256_store_si256(reinterpret_cast<__m256i*>(to + (c + i) * kKeys), reinterpret_cast<const __m256i&>(narrow));
    }
  }
}

// The weights of two keys for 16 rows, as row `key` and the next of a product's right side.
WEFT_INLINE void store_weights(Rounded* to, f32x16 first, f32x16 second) {
  const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21,
                                         5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  _mm512_store_si512(to, _mm512_permutexvar_epi16(pairs, as_bits(_mm512_cvtne2ps_pbh(second.v, first.v))));
}

// out [wide][16] / total, as rows; count of them.
template <class To>
WEFT_INLINE void unpack_rows(const float* out, f32x16 total, To row_at, int64_t count, int64_t dim) {
  for (int64_t c = 0; c < dim; c += 16) {
    __m512i rows[16];
    for (int64_t i = 0; i < 16; ++i) rows[i] = _mm512_castps_si512((load(out + (c + i) * kLanes) / total).v);
    transpose(rows);
    for (int64_t i = 0; i < count; ++i) store_n(row_at(i) + c, {_mm512_castsi512_ps(rows[i])}, dim - c);
  }
}

#else

using Rounded = float;  // of bfloat16 precision
constexpr int64_t kSpan = 256;

WEFT_INLINE void shape_whole_tiles() {}

// One step of a product for n rows of a.
template <int n>
WEFT_INLINE void add_step(const Rounded* a, int64_t stride, const Rounded* b, float* c) {
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

template <bool add>
static void multiply(const Rounded* a, int64_t stride, int64_t rows, const Rounded* b, int64_t depth, float* c) {
  if (!add) fill(c, rows * kLanes, [](auto) { return zero(); });
  for (int64_t k = 0; k < depth; k += kStep) {
    int64_t row = 0;
    for (; row + 4 <= rows; row += 4) add_step<4>(a + row * stride + k, stride, b + k * kLanes, c + row * kLanes);
    for (; row < rows; ++row) add_step<1>(a + row * stride + k, stride, b + k * kLanes, c + row * kLanes);
  }
}

WEFT_INLINE Rounded rounded(float value) { return bf16_to_float(float_to_bf16_normal(value)); }

template <class From>
WEFT_INLINE void pack_queries(Rounded* to, From row_at, int64_t count, int64_t dim, int64_t deep, float scale) {
  fill(to, deep * kLanes, [](auto) { return zero(); });
  for (int64_t i = 0; i < count; ++i)
    for (int64_t c = 0; c < dim; ++c) to[c * kLanes + i] = rounded(row_at(i)[c] * scale);
}

WEFT_INLINE void pack_key(Rounded* to, const float* key, int64_t dim, int64_t deep) {
  for (int64_t c = 0; c < dim; ++c) to[c] = rounded(key[c]);
  for (int64_t c = dim; c < deep; ++c) to[c] = 0;
}

static void pack_values(Rounded* to, const float* value, int64_t stride, int64_t count, int64_t dim, int64_t) {
  for (int64_t c = 0; c < dim; ++c)
    for (int64_t j = 0; j < 16; ++j) to[c * kKeys + j] = j < count ? rounded(value[j * stride + c]) : 0;
}

WEFT_INLINE void store_weights(Rounded* to, f32x16 first, f32x16 second) {
  store(to, first);
  store(to + kLanes, second);
  for (int64_t i = 0; i < 2 * kLanes; ++i) to[i] = rounded(to[i]);
}

template <class To>
WEFT_INLINE void unpack_rows(const float* out, f32x16 total, To row_at, int64_t count, int64_t dim) {
  alignas(64) float channel[kLanes];
  for (int64_t c = 0; c < dim; ++c) {
    store(channel, load(out + c * kLanes) / total);
    for (int64_t i = 0; i < count; ++i) row_at(i)[c] = channel[i];
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

// From scores to weights; returns their sums, those of the even and of the odd keys added up apart.
static f32x16 weigh(const Span& span, f32x16 top) {
  f32x16 even = zero(), odd = zero();
  int64_t j = 0;
  for (; j + 2 <= span.keys; j += 2) {
    const f32x16 first = exp2_coarse(load(span.scores + j * kLanes) - top);
    const f32x16 second = exp2_coarse(load(span.scores + (j + 1) * kLanes) - top);
    even = even + first;
    odd = odd + second;
    store_weights(span.weights + j * kLanes, first, second);
  }
  if (j < span.keys) {
    const f32x16 last = exp2_coarse(load(span.scores + j * kLanes) - top);
    even = even + last;
    store_weights(span.weights + j * kLanes, last, zero());
    j += 2;
  }
  for (; j < up_to(span.keys, kStep); j += 2) store_weights(span.weights + j * kLanes, zero(), zero());
  return even + odd;
}

// One tile of 16 rows past the present block of keys.
static void attend_tile(const Span& span, int64_t tile, bool first_block) {
  const int64_t whole = up_to(span.keys, kStep);
  float *out = span.out + tile * span.wide * kLanes, *kept_top = span.top + tile * kLanes;
  float* kept_total = span.total + tile * kLanes;
  multiply<false>(span.key, span.deep, span.keys, span.q + tile * span.deep * kLanes, span.deep, span.scores);
  f32x16 top = load(span.scores);
  for (int64_t j = 1; j < span.keys; ++j) top = max(top, load(span.scores + j * kLanes));
  if (first_block) {
    store(kept_total, weigh(span, top));
    multiply<false>(span.value, kKeys, span.dim, span.weights, whole, out);
  } else {
    const f32x16 before = load(kept_top), both = max(before, top);
    const f32x16 factor = exp2_coarse(before - both);
    top = both;
    store(kept_total, fma(load(kept_total), factor, weigh(span, top)));
    fill(out, span.dim * kLanes, [&](auto at) { return at(out) * factor; });
    multiply<true>(span.value, kKeys, span.dim, span.weights, whole, out);
  }
  store(kept_top, top);
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
    auto place = [&](int64_t row) {
      const int64_t r = task.first + row;
      return ((start + r / share) * heads + task.head * share + r % share) * dim;
    };
    auto in_tiles = [&](auto f) {
      for (int64_t row = 0; row < task.count; row += kLanes) f(row, smaller(kLanes, task.count - row));
    };
    in_tiles([&](int64_t row, int64_t count) {
      pack_queries(span.q + row * span.deep, [&](int64_t i) { return q + place(row + i); }, count, dim, span.deep,
                   span.scale);
    });
    for (int64_t first = 0; first < length; first += kKeys) {
      const int64_t from = ((start + first) * kv_heads + task.head) * dim;
      pack_block(span, k + from, v + from, stride, smaller(kKeys, length - first));
      in_tiles([&](int64_t row, int64_t) { attend_tile(span, row / kLanes, first == 0); });
    }
    in_tiles([&](int64_t row, int64_t count) {
      unpack_rows(span.out + row * span.wide, load(span.total + row), [&](int64_t i) { return result + place(row + i); },
                  count, dim);
    });
  });
}

}  // namespace weft::ISA
