// attention_paged: every token attends to the keys and values of its sequence in the state, up to its own position.
//
// Meaning  weft/ops/paged.py
// Layout   q, out [T, H, D] contiguous; state as in core/state.h, H a multiple of its heads; positions i32 [T],
//          segments i32 [B+1], pages i32 [B, P]; sinks [H], reach i32 [T] or absent; out may be q
// Method   kernels/attention_block.h; a task is a span of rows of one sequence and key/value head; a page is a block
//          and is read where it lies; one in 4 bits is expanded first. Over codes of rotated rows the queries are rotated too,
//          and the results back
// Bound    memory when decoding (2 to 8 D bytes per key and key/value head), arithmetic when reading a prompt
#include "kernels/attention_block.h"
#include "kernels/attention_task.h"

namespace weft::ISA {

template <class T>
static void attend_pages(const Call& call, const Worker& worker) {
  const KvState& state = *call.in[1].state;
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], share = heads / state.heads;
  const float* q = call.in[0].as<float>();
  const int32_t *positions = call.in[2].as<int32_t>(), *segments = call.in[3].as<int32_t>();
  const int32_t* pages = call.in[4].as<int32_t>();
  float* out = call.out[0].as<float>();
  const Operand *sinks = optional(call, 5), *reach = optional(call, 6);
  const int32_t* last = reach ? reach->as<int32_t>() : positions;  // the last position that a token sees
  const int64_t window = call.integer("window");
  const float scale = static_cast<float>(call.number("scale")), softcap = static_cast<float>(call.number("softcap"));

  deal_spans(worker, segments, call.in[4].rows(), state.heads, share, span_rows(dim), [&](SpanTask task) {
    const int64_t start = segments[task.sequence];
    auto offset = [&](int64_t row) {
      const int64_t r = task.first + row;
      return ((start + r / share) * heads + task.head * share + r % share) * dim;
    };
    const Span span = new_span(worker, task.count, dim, scale, softcap);
    if (sinks)
      begin_with_sinks(span, sinks->as<float>(),
                       [&](int64_t row) { return task.head * share + (task.first + row) % share; });
    pack_queries(span, [&](int64_t row) -> const float* {
      if (!kScaled<T> || !state.rotated()) return q + offset(row);
      walsh_row(span.key, q + offset(row), rotation(dim));  // blocks need no transposing here: span.key is free
      return span.key;
    });
    for (int64_t row = 0; row < span.rows; ++row) {
      const int64_t token = start + (task.first + row) / share;
      span.begin[row] = window ? static_cast<int32_t>(larger(0, positions[token] - window + 1)) : 0;
      span.end[row] = last[token] + 1;
    }
    const int32_t* own_pages = pages + task.sequence * call.in[4].cols();
    attend(span, [&](int64_t n) {
      const auto key = block_of<const T>(state, state.key, own_pages[n], task.head);
      const auto value = block_of<const T>(state, state.value, own_pages[n], task.head);
      if (state.dtype == DType::i4r) {
        if constexpr (kScaled<T>) {
          T *keys = reinterpret_cast<T*>(span.key), *values = keys + up_to(dim, 2) * kPage;
          expand_keys(keys, reinterpret_cast<const uint8_t*>(key.elements), dim);
          expand_values(values, reinterpret_cast<const uint8_t*>(value.elements), dim, kPage);
          return Block<T>{keys, values, dim, key.scales, value.scales};
        }
      }
      return Block<T>{key.elements, value.elements, dim, key.scales, value.scales};
    });
    finish(span, [&](int64_t row) { return out + offset(row); });
    for (int64_t row = 0; kScaled<T> && state.rotated() && row < span.rows; ++row)
      walsh_row(out + offset(row), out + offset(row), rotation(dim));
  });
}

KERNEL(attention_paged) {
  by_element(*call.in[1].state, [&]<class T>() { attend_pages<T>(call, worker); });
}

}  // namespace weft::ISA
