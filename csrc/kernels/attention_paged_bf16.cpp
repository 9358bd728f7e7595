// attention_paged_bf16: every token attends to the keys and values of its sequence in the state, up to its own position, in
// bfloat16 with float32 sums.
//
// Meaning  weft/ops/attention.py
// Layout   q, out [T, H, D] contiguous, D at most 128; state as in core/state.h, f32 or f16, H a multiple of its heads;
//          positions i32 [T], segments i32 [B+1], pages i32 [B, P]; out may be q
// Method   kernels/attention_tiles.h; a task is a span of rows of one sequence and key/value head; its pages are rounded and
//          packed a block at a time. Pages that no row of the span sees, and what lies behind the last key, are never read:
//          zeros stand there
// Bound    packing when decoding, exponentials and the matrix unit when reading a prompt
#include "kernels/attention_tiles.h"

namespace weft::ISA {

WEFT_INLINE f32x16 widen_n(const float* p, int64_t n) { return n < kLanes ? load_n(p, n) : load(p); }
WEFT_INLINE f32x16 widen_n(const uint16_t* p, int64_t n) { return n < kLanes ? load_f16_n(p, n) : load_f16(p); }

// A page's keys [dim][kPage], of which `count` are there, as two columns of tiles.
template <class T>
static void pack_keys(const Span& span, int64_t at, const T* key, int64_t count) {
  for (int64_t half = 0; half < kPage; half += kLanes) {
    const int64_t seen = larger(0, smaller(kLanes, count - half));
    Rounded* to = span.key + (at + half) * span.deep;
    for (int64_t c = 0; c < span.deep; c += 2) {
      const T* from = key + c * kPage + half;
      store_pair(to + c * kLanes, c < span.dim ? widen_n(from, seen) : zero(),
                 c + 1 < span.dim ? widen_n(from + kPage, seen) : zero());
    }
  }
}

// A page's values [kPage][dim], of which `count` are there, as a row of tiles.
template <class T>
static void pack_values(const Span& span, int64_t at, const T* value, int64_t count) {
  Rounded* to = span.value + at * span.wide;
  for (int64_t j = 0; j < kPage; j += 2)
    for (int64_t c = 0; c < span.dim; c += kLanes) {
      const T* from = value + j * span.dim + c;
      const int64_t width = smaller(kLanes, span.dim - c);
      store_pair(to + c * kStep + j * kLanes, j < count ? widen_n(from, width) : zero(),
                 j + 1 < count ? widen_n(from + span.dim, width) : zero());
    }
}

template <class T>
static void attend_pages(const Call& call, const Worker& worker) {
  const KvState& state = *call.in[1].state;
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], share = heads / state.heads;
  const int64_t window = call.integer("window");
  const int32_t *positions = call.in[2].as<int32_t>(), *segments = call.in[3].as<int32_t>();
  const T* keys = reinterpret_cast<const T*>(state.key.data());
  const T* values = reinterpret_cast<const T*>(state.value.data());
  if (dim > kMaxDim) __builtin_trap();  // the op's shape rule refuses it
  Span span = new_span(worker, dim, static_cast<float>(call.number("scale")), static_cast<float>(call.number("softcap")));

  deal_spans(worker, segments, call.in[4].rows(), state.heads, share, kSpan, [&](SpanTask task) {
    const int64_t begin = segments[task.sequence];
    const int32_t* pages = call.in[4].as<int32_t>() + task.sequence * call.in[4].cols();
    int64_t first = INT32_MAX, last = 0;
    span.rows = task.count;
    for (int64_t row = 0; row < span.rows; ++row) {
      const int64_t token = begin + (task.first + row) / share;
      span.at[row] = (token * heads + task.head * share + (task.first + row) % share) * dim;
      span.end[row] = positions[token] + 1;
      span.begin[row] = window ? static_cast<int32_t>(larger(0, span.end[row] - window)) : 0;
      first = smaller(first, span.begin[row]);
      last = larger(last, span.end[row]);
    }
    start_rows(span, call.in[0].as<float>());
    for (int64_t start = first / kKeys * kKeys; start < last; start += kKeys) {
      for (int64_t j = larger(0, first - start) / kPage * kPage; j < smaller(kKeys, last - start); j += kPage) {
        const int64_t page = (pages[(start + j) / kPage] * state.heads + task.head) * dim * kPage;
        const int64_t count = smaller(kPage, last - start - j);
        pack_keys(span, j, keys + page, count);
        pack_values(span, j, values + page, count);
      }
      attend_block(span, start);
    }
    finish_rows(span, call.out[0].as<float>());
  });
}

KERNEL(attention_paged_bf16) {
  if (call.in[1].state->dtype == DType::f16)
    attend_pages<uint16_t>(call, worker);
  else
    attend_pages<float>(call, worker);
}

}  // namespace weft::ISA
