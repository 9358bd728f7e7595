// attention_whole: attention of every token to its own sequence in this step, in f32; no state.
#pragma once
#include "kernels/attention_block.h"
#include "kernels/attention_task.h"

namespace weft::ISA {

// to [dim][kPage] from `count` keys, `stride` apart; the rest of the block is zero.
static void transpose_keys(float* to, const float* key, int64_t stride, int64_t count, int64_t dim) {
  if (count < kPage) fill(to, dim * kPage, [](auto) { return zero(); });
  for (int64_t j = 0; j < count; ++j)
    for (int64_t c = 0; c < dim; ++c) to[c * kPage + j] = key[j * stride + c];
}

// Keys that the token at `position` of a sequence of `length` sees. A window without `causal` reaches both ways.
static void see(const Span& span, int64_t row, int64_t position, int64_t length, bool causal, int64_t window) {
  const int64_t begin = window ? larger(0, position - window + 1) : 0;
  const int64_t end = causal ? position + 1 : window ? smaller(length, position + window) : length;
  span.begin[row] = static_cast<int32_t>(begin);
  span.end[row] = static_cast<int32_t>(end);
}

// Optional operands.
struct Extras {
  const Operand *sinks, *bias, *buckets;
};

static void attend_sequences(const Call& call, const Worker& worker, bool causal, int64_t window, float softcap,
                             Extras extras) {
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], kv_heads = call.in[1].dim[1];
  const int64_t share = heads / kv_heads, stride = kv_heads * dim, batch = call.in[3].cols() - 1;
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const int32_t* segments = call.in[3].as<int32_t>();
  float* out = call.out[0].as<float>();
  const float scale = static_cast<float>(call.number("scale"));
  const Lines lines = lines_of(extras.bias, extras.buckets, share);

  deal_spans(worker, segments, batch, kv_heads, share, span_rows(dim, lines.size()), [&](SpanTask task) {
    const int64_t start = segments[task.sequence], length = segments[task.sequence + 1] - start;
    auto offset = [&](int64_t row) {
      const int64_t r = task.first + row;
      return ((start + r / share) * heads + task.head * share + r % share) * dim;
    };
    Span span = new_span(worker, task.count, dim, scale, softcap, lines);
    if (extras.sinks)
      begin_with_sinks(span, extras.sinks->as<float>(),
                       [&](int64_t row) { return task.head * share + (task.first + row) % share; });
    if (lines.bias) span.lines.before = task.first, fill_lines(span.lines, task.head, 1);
    pack_queries(span, [&](int64_t row) { return q + offset(row); });
    for (int64_t row = 0; row < span.rows; ++row) see(span, row, (task.first + row) / share, length, causal, window);
    attend(span, [&](int64_t n) {
      const int64_t first = ((start + n * kPage) * kv_heads + task.head) * dim;
      transpose_keys(span.key, k + first, stride, smaller(kPage, length - n * kPage), dim);
      return Block<float>{span.key, v + first, stride};
    });
    finish(span, [&](int64_t row) { return out + offset(row); });
  });
}

}  // namespace weft::ISA
