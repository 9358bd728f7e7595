// attention_bf16: every token attends to all tokens of its own sequence, in bfloat16 with float32 sums.
//
// Meaning  weft/ops/attention.py
// Layout   q, out [T, H, D], k, v [T, G, D] contiguous, H a multiple of G, D at most 128; segments i32 [B+1]; bias [K, H]
//          of f32, f16 or bf16 and buckets f32 [2R+1], both or neither. q, k and v
//          are float32 or bfloat16, and out is either, independently; out may be q if their types are equal
// Method   kernels/attention_tiles.h; a task is a span of rows (query heads of tokens) of one sequence and key/value head;
//          its keys are rounded and packed a block at a time, zeros after the last one
// Bound    exponentials, one per row and key, and the matrix unit
#include "kernels/attention_tiles.h"
#if defined(WEFT_ISA_avx512)
#include "simd/transpose.h"
#endif

namespace weft::ISA {

// 32 channels of 16 keys, of which `count` and `channels` are there: a right tile.
#if defined(WEFT_ISA_amx)  // a transpose of keys and pairs of channels
WEFT_INLINE __m512i row_of(const float* key, int64_t channels) {
  return round_two(load_n(key, channels), load_n(key + kLanes, larger(0, channels - kLanes)));
}
WEFT_INLINE __m512i row_of(const uint16_t* key, int64_t channels) {
  const __mmask32 there = channels >= kStep ? ~__mmask32{0} : (__mmask32{1} << channels) - 1;
  return _mm512_maskz_loadu_epi16(there, key);
}
template <class In>
WEFT_INLINE void pack_tile(Rounded* to, const In* key, int64_t stride, int64_t count, int64_t channels) {
  __m512i rows[16];
  for (int64_t j = 0; j < 16; ++j, key += stride) rows[j] = j < count ? row_of(key, channels) : _mm512_setzero_si512();
  transpose(rows);
  for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * kStep, rows[i]);
}
#elif defined(WEFT_ISA_avx512)
template <class In>
WEFT_INLINE void pack_tile(Rounded* to, const In* key, int64_t stride, int64_t count, int64_t channels) {
  for (int64_t c = 0; c < kStep; c += kLanes) {
    __m512i rows[16];
    for (int64_t j = 0; j < 16; ++j)
      rows[j] = _mm512_castps_si512((j < count ? read_n(key + j * stride + c, larger(0, channels - c)) : zero()).v);
    transpose(rows);
    for (int64_t i = 0; i < 16; ++i) store_rounded(to + (c + i) * kLanes, {_mm512_castsi512_ps(rows[i])});
  }
}
#else
template <class In>
WEFT_INLINE void pack_tile(Rounded* to, const In* key, int64_t stride, int64_t count, int64_t channels) {
  if (count < kLanes || channels < kStep) fill(to, kTile, [](auto) { return zero(); });
  for (int64_t j = 0; j < count; ++j)
    for (int64_t c = 0; c < smaller(channels, kStep); c += kLanes) {
      alignas(64) float lane[16];
      store(lane, read_n(key + j * stride + c, channels - c));
      for (int64_t i = 0; i < smaller(kLanes, channels - c); ++i) to[(c + i) * kLanes + j] = lane[i];
    }
  for (int64_t i = 0; i < kTile; i += kLanes) store_rounded(to + i, load(to + i));
}
#endif

// `count` keys and values, a block at most.
template <class In>
static void pack_block(const Span& span, const In* key, const In* value, int64_t stride, int64_t count) {
  for (int64_t j = 0; j < up_to(count, kStep); j += kLanes)
    for (int64_t c = 0; c < span.deep; c += kStep)
      pack_tile(span.key + j * span.deep + c * kLanes, key + j * stride + c, stride,
                larger(0, smaller(kLanes, count - j)), span.dim - c);
  for (int64_t j = 0; j < up_to(count, kStep); j += 2) {
    const In *first = value + j * stride, *second = first + stride;
    Rounded* to = span.value + j / kStep * kStep * span.wide + j % kStep * kLanes;
    for (int64_t c = 0; c < span.dim; c += kLanes)
      store_pair(to + c * kStep, j < count ? read_n(first + c, span.dim - c) : zero(),
                 j + 1 < count ? read_n(second + c, span.dim - c) : zero());
  }
}

template <class In>
static void attend_all(const Call& call, const Worker& worker) {
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], kv_heads = call.in[1].dim[1];
  const int64_t share = heads / kv_heads, stride = kv_heads * dim;
  const In *k = call.in[1].as<In>(), *v = call.in[2].as<In>();
  const int32_t* segments = call.in[3].as<int32_t>();
  const bool rounded = call.flag("rounded");
  if (dim > kMaxDim) __builtin_trap();  // the op's shape rule refuses it
  const Lines lines = lines_of(optional(call, 4), optional(call, 5), share);
  Span span = new_span(worker, dim, static_cast<float>(call.number("scale")), 0, DType::f32, lines);
  span.alike = true;

  deal_spans(worker, segments, call.in[3].cols() - 1, kv_heads, share, kSpan, [&](SpanTask task) {
    const int64_t begin = segments[task.sequence], length = segments[task.sequence + 1] - begin;
    span.rows = task.count;
    for (int64_t row = 0; row < span.rows; ++row) {
      span.at[row] = place_of(task, row, begin, heads, share) * dim;
      span.begin[row] = 0;
      span.end[row] = static_cast<int32_t>(length);
    }
    start_rows(span, call.in[0].as<In>());
    if (lines.bias) span.lines.before = task.first, fill_lines(span.lines, task.head, kLog2E);
    for (int64_t start = 0; start < length; start += kKeys) {
      const int64_t from = ((begin + start) * kv_heads + task.head) * dim;
      pack_block(span, k + from, v + from, stride, smaller(kKeys, length - start));
      attend_block(span, start, Packed{span.key, span.value, span.deep, span.wide});
    }
    if (rounded) finish_rows(span, call.out[0].as<uint16_t>());
    else finish_rows(span, call.out[0].as<float>());
  });
}

KERNEL(attention_bf16) {
  if (call.in[0].dtype == DType::bf16) attend_all<uint16_t>(call, worker);
  else attend_all<float>(call, worker);
}

}  // namespace weft::ISA
