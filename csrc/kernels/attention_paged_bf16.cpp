// attention_paged_bf16: attention_paged in bfloat16 with float32 sums.
//
// Meaning  weft/ops/paged.py
// Layout   q, out [T, H, D] contiguous, D at most 128; state as in core/state.h, H a multiple of its heads; positions i32 [T], segments i32 [B+1], pages i32 [B, P];
//          sinks [H], reach i32 [T] or absent; out may be q
// Method   kernels/attention_tiles.h; a task is a span of rows of one sequence and key/value head; its pages are rounded and
//          packed a block at a time. Pages that no row of the span sees are never read; after the last key scores are
//          hidden and values are zeros
// Bound    packing when decoding, exponentials and the matrix unit when reading a prompt
#include "kernels/attention_tiles.h"

namespace weft::ISA {

template <class T>
WEFT_INLINE void fetch(const T* p, int64_t count) {
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(p + i);
}

// A page's keys [dim][kPage] as two columns of tiles; what follows the last key is packed too, and its scores are
// hidden. `next` points to the next page to be packed.
template <class T>
static void pack_keys(Rounded* low, int64_t dim, const T* key, const T* next) {
  const int64_t deep = up_to(dim, kStep), pairs = dim / 2 * 2;
  Rounded* high = low + kLanes * deep;
  for (int64_t c = 0; c < pairs; c += 2) {
    const T *first = key + c * kPage, *second = first + kPage;
    fetch(next + c * kPage, 2 * kPage);
    pack_pair(low + c * kLanes, first, second);
    pack_pair(high + c * kLanes, first + kLanes, second + kLanes);
  }
  for (int64_t c = pairs; c < deep; c += 2) {
    store_pair(low + c * kLanes, c < dim ? widen(key + c * kPage) : zero(), zero());
    store_pair(high + c * kLanes, c < dim ? widen(key + c * kPage + kLanes) : zero(), zero());
  }
}

// `width` channels of a page's values [kPage][dim], of which `count` are there, as a row of tiles.
template <class T>
static void pack_values(Rounded* to, int64_t dim, int64_t width, const T* value, int64_t count, const T* next) {
  const int64_t whole = width / kLanes * kLanes;
  int64_t j = 0;
  for (; j + 2 <= count; j += 2, to += 2 * kLanes, value += 2 * dim, next += 2 * dim) {
    fetch(next, width);
    fetch(next + dim, width);
    int64_t c = 0;
    for (; c < whole; c += kLanes) pack_pair(to + c * kStep, value + c, value + dim + c);
    if (c < width) store_pair(to + c * kStep, widen_n(value + c, width - c), widen_n(value + dim + c, width - c));
  }
  for (; j < kPage; j += 2, to += 2 * kLanes)
    for (int64_t c = 0; c < width; c += kLanes)
      store_pair(to + c * kStep, j < count ? widen_n(value + c, width - c) : zero(), zero());
}

// The pages of a sequence from `start` on, for one head. A page is packed when it is needed, keys and values into the same
// memory, so that they stay in the first-level cache. For one tile of rows, while decoding.
template <class T>
struct Pages {
  const Span& span;
  const KvState& state;
  const int32_t* table;
  int64_t head, start, last;  // last: one past the last key that a row sees

  WEFT_INLINE StateBlock<const T> stored(std::byte* half, int64_t at) const {
    return block_of<const T>(state, half, table[smaller(start + at, last - 1) / kPage], head);
  }
  // Pages in 4 bits were expanded; what follows the last one is only prefetched.
  WEFT_INLINE StateBlock<const T> block(std::byte* half, int64_t at) const {
    StateBlock<const T> found = stored(half, at);
    if constexpr (kScaled<T>)
      if (state.dtype == DType::i4r) {
        const bool key = half == state.key;
        const int64_t page = smaller(start + at, last - 1) / kPage - start / kPage;
        found.elements = key ? span.expanded_keys + page * kPage * up_to(span.dim, 2)
                             : span.expanded_values + page * kPage * span.dim;
      }
    return found;
  }
  // The pages from `at` to `end`, of 4 bits, as int8.
  WEFT_INLINE void expand_pages(int64_t at, int64_t end) const {
    for (; at < end; at += kPage) {
      const auto bytes = [&](std::byte* half) { return reinterpret_cast<const uint8_t*>(stored(half, at).elements); };
      expand_keys(span.expanded_keys + at * up_to(span.dim, 2), bytes(state.key), span.dim);
      expand_values(span.expanded_values + at * span.dim, bytes(state.value), span.dim, count(at));
    }
  }
  WEFT_INLINE int64_t count(int64_t at) const { return smaller(kPage, last - start - at); }
  WEFT_INLINE void pack_keys_to(Rounded* to, int64_t at) const {
    pack_keys(to, span.dim, block(state.key, at).elements, block(state.key, at + kPage).elements);
  }
  WEFT_INLINE void pack_values_to(Rounded* to, int64_t at, int64_t channel, int64_t width) const {
    pack_values(to, span.dim, smaller(width, span.dim - channel), block(state.value, at).elements + channel, count(at),
                block(state.value, at + kPage).elements + channel);
  }
  // The scales of the pages from `at` to `end`; zeros after the last key, where the memory holds anything.
  WEFT_INLINE void copy_scales(int64_t at, int64_t end) const {
    for (; at < end; at += kPage)
      for (int64_t i = 0; i < kPage; i += kLanes) {
        store(span.key_scale + at + i, load_n(block(state.key, at).scales + i, larger(0, count(at) - i)));
        store(span.value_scale + at + i, load_n(block(state.value, at).scales + i, larger(0, count(at) - i)));
      }
  }
  WEFT_INLINE const Rounded* keys(int64_t at, int64_t many) const {
    for (int64_t j = 0; j < many; j += kPage) pack_keys_to(span.key + j * span.deep, at + j);
    return span.key;
  }
  WEFT_INLINE const Rounded* values(int64_t at, int64_t channel, int64_t width) const {
    pack_values_to(span.key, at, channel, width);
    return span.key;
  }
};

#if !defined(WEFT_ISA_amx)
// The same for a few rows, which read elements in place: packing them would take longer than multiplying.
constexpr int64_t kFewRows = 4;

template <class T>
struct PagesInPlace : Pages<T> {
  int64_t block_end;  // of the present block's keys
  WEFT_INLINE StateRows<T> key_rows(int64_t at, int64_t channel) const {
    const int64_t page = at / kPage * kPage, dim = this->span.dim;
    const T* first = this->block(this->state.key, page).elements + channel * kPage + (at - page);
    const bool more = page + kPage < block_end;
    const auto& following = more ? this->block(this->state.key, page + kPage) : this->block(this->state.value, 0);
    return {smaller(kStep, dim - channel), kPage, first, at == page ? following.elements + channel * kPage : first};
  }
  WEFT_INLINE StateRows<T> value_rows(int64_t at, int64_t channel) const {
    const int64_t dim = this->span.dim, line = 64 / static_cast<int64_t>(sizeof(T));
    const T* first = this->block(this->state.value, at).elements + channel;
    const auto& following = this->block(this->state.value, at + kPage);
    return {this->count(at), dim, first, channel % line == 0 ? following.elements + channel : first};
  }
};
#endif

template <class T>
static void attend_pages(const Call& call, const Worker& worker) {
  const KvState& state = *call.in[1].state;
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], share = heads / state.heads;
  const int64_t window = call.integer("window");
  const Operand *sinks = optional(call, 5), *reach = optional(call, 6);
  const int32_t *positions = call.in[2].as<int32_t>(), *segments = call.in[3].as<int32_t>();
  const int32_t* seen = reach ? reach->as<int32_t>() : positions;  // the last position that a token sees
  if (dim > kMaxDim) __builtin_trap();  // the op's shape rule refuses it
  Span span = new_span(worker, dim, static_cast<float>(call.number("scale")), static_cast<float>(call.number("softcap")),
                       state.dtype);

  deal_spans(worker, segments, call.in[4].rows(), state.heads, share, kSpan, [&](SpanTask task) {
    int64_t first = INT32_MAX, last = 0;
    span.rows = task.count;
    for (int64_t row = 0; row < span.rows; ++row) {
      const int64_t place = place_of(task, row, segments[task.sequence], heads, share);
      span.at[row] = place * dim;
      span.end[row] = seen[place / heads] + 1;
      span.begin[row] = window ? static_cast<int32_t>(larger(0, positions[place / heads] + 1 - window)) : 0;
      first = smaller(first, span.begin[row]);
      last = larger(last, span.end[row]);
    }
    start_rows(span, call.in[0].as<float>());
    if (sinks)
      begin_with_sinks(span, sinks->as<float>(),
                       [&](int64_t row) { return task.head * share + (task.first + row) % share; });
    for (int64_t start = first / kKeys * kKeys; start < last; start += kKeys) {
      const int32_t* table = call.in[4].as<int32_t>() + task.sequence * call.in[4].cols();
      const Pages<T> pages{span, state, table, task.head, start, last};
      const int64_t from = larger(0, first - start) / kPage * kPage, to = smaller(kKeys, last - start);
      if constexpr (kScaled<T>) {
        pages.copy_scales(from, to);
        if (state.dtype == DType::i4r) pages.expand_pages(from, to);
      }
#if !defined(WEFT_ISA_amx)
      if (span.rows <= kFewRows && dim % kLanes == 0) {
        attend_block(span, start, PagesInPlace<T>{pages, to});
        continue;
      }
#endif
      if (span.rows <= kLanes) {
        attend_block(span, start, pages);
        continue;
      }
      for (int64_t at = from; at < to; at += kPage) {
        pages.pack_keys_to(span.key + at * span.deep, at);
        pages.pack_values_to(span.value + at * span.wide, at, 0, dim);
      }
      attend_block(span, start, Packed{span.key, span.value, span.deep, span.wide});
    }
    finish_rows(span, call.out[0].as<float>());
  });
}

KERNEL(attention_paged_bf16) {
  by_element(*call.in[1].state, [&]<class T>() { attend_pages<T>(call, worker); });
}

}  // namespace weft::ISA
