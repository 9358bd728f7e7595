// mamba2: per token S = e^(dt a) S + b (dt x)T; y = cT S + d x, one state S [N, P] for each head.
//
// Meaning  weft/ops/recurrent.py
// Layout   x, y [T, H, P], b, c [T, G, N], dt [T, H], a, d [H] contiguous f32; state [H, N, P]
// Method   a task is up to 32 columns of S of one head of one sequence, token after token, one pass over S a token; sums over
//          N are in order, so no split of a text changes a bit
// Bound    arithmetic: 3 N multiply-adds a column and token, on S in the first cache
#include "kernels/recurrent_columns.h"

namespace weft::ISA {

namespace {

// What the tokens of a task read and write; rows of tokens lie a stride apart.
struct Head {
  const float *x, *b, *c, *rate;
  float* y;
  int64_t size, state_stride, value_stride, heads;
  float decay, skip;
};

// Tokens from `begin` on, at least one.
template <int kCount>
void run(const Head& head, const SlotColumns& slots, int64_t begin, int64_t end, float* columns) {
  constexpr int64_t width = kCount * kLanes;
  const Vectors<kCount> at(slots.count);
  for (int64_t token = begin; token < end; ++token) {
    const float *b = head.b + token * head.state_stride, *c = head.c + token * head.state_stride;
    const float *x = head.x + token * head.value_stride, rate = head.rate[token * head.heads];
    if (token + 1 < end) {
      prefetch(b + head.state_stride, head.size);
      prefetch(c + head.state_stride, head.size);
      prefetch(x + head.value_stride, slots.count);
    }
    const f32x16 kept = exp(splat(rate * head.decay));
    f32x16 change[kCount], found[kCount];
    for (int j = 0; j < kCount; ++j) change[j] = at.get(x, j) * splat(rate), found[j] = zero();
    // `row` makes vector j of row i of S as it was before the token.
    auto pass = [&](auto&& row) {
      for (int64_t i = 0; i < head.size; ++i) {
        const f32x16 into = splat(b[i]), out = splat(c[i]);
        for (int j = 0; j < kCount; ++j) {
          const f32x16 a = fma(into, change[j], row(i, j) * kept);
          store(columns + i * width + j * kLanes, a);
          found[j] = fma(out, a, found[j]);
        }
      }
    };
    if (token > begin)
      pass([&](int64_t i, int j) { return load(columns + i * width + j * kLanes); });
    else if (slots.source)
      pass([&](int64_t i, int j) { return at.get(slots.source + i * slots.stride, j); });
    else
      pass([&](int64_t, int) { return zero(); });
    for (int j = 0; j < kCount; ++j)
      at.put(head.y + token * head.value_stride, j, fma(splat(head.skip), at.get(x, j), found[j]));
  }
  for (int64_t i = 0; slots.target && i < head.size; ++i)
    for (int j = 0; j < kCount; ++j) at.put(slots.target + i * slots.stride, j, load(columns + i * width + j * kLanes));
}

}  // namespace

KERNEL(mamba2) {
  const int64_t heads = call.in[0].dim[1], values = call.in[0].dim[2];
  const int64_t groups = call.in[1].dim[1], size = call.in[1].dim[2];
  const float *x = call.in[0].as<float>(), *b = call.in[1].as<float>(), *c = call.in[2].as<float>();
  const float *rate = call.in[3].as<float>(), *decay = call.in[4].as<float>(), *skip = call.in[5].as<float>();
  const SlotState* state = call.in[6].slots;  // null: whole texts, of which nothing is kept
  const int32_t *slots = call.in[7].as<int32_t>(), *segments = call.in[8].as<int32_t>();
  const int64_t sequences = call.in[8].size() - 1, blocks = (values + kTaskColumns - 1) / kTaskColumns;
  float* y = call.out[0].as<float>();
  float* columns = reinterpret_cast<float*>(worker.scratch);  // [N, 16 or 32]
  for (int64_t task; (task = worker.next(sequences * heads * blocks)) < sequences * heads * blocks;) {
    const int64_t sequence = task / (heads * blocks), head = task / blocks % heads, first = task % blocks * kTaskColumns;
    const int64_t group = head * groups / heads;
    const int64_t begin = segments[sequence], end = segments[sequence + 1];
    const SlotColumns at(state, state ? slots + 2 * sequence : nullptr, head, size, values, first);
    const Head own{x + head * values + first, b + group * size, c + group * size, rate + head, y + head * values + first,
                   size, groups * size, heads * values, heads, decay[head], skip[head]};
    if (begin == end)
      at.copy();
    else if (at.count > kLanes)
      run<2>(own, at, begin, end, columns);
    else
      run<1>(own, at, begin, end, columns);
  }
}

}  // namespace weft::ISA
