// delta_rule: per token S = e^g S; u = beta (v - kT S); S = S + k uT; y = scale qT S, one state S [K, V] for each head.
//
// Meaning  weft/ops/recurrent.py
// Layout   q, k [T, G, K], v, y [T, H, V], g, beta [T, H] contiguous f32; state [H, K, V]
// Method   a task is up to 32 columns of S of one head of one sequence, token after token, one pass over S a token: it adds
//          the k uT of the token before and sums kT S and qT S; y adds scale (q k) u to the latter. Sums over K are in a fixed
//          order and no token is computed with the next, so no split of a text changes a bit
// Bound    arithmetic: 4 K multiply-adds a column and token, on S in the first cache
#include "kernels/recurrent_columns.h"

namespace weft::ISA {

namespace {

// What the tokens of a task read and write; rows of tokens lie a stride apart.
struct Head {
  const float *q, *k, *v, *decay, *beta;
  float* y;
  int64_t keys, key_stride, value_stride, heads;
  f32x16 scale;
};

// Sum of a[i] b[i], by lanes.
float dot(const float* a, const float* b, int64_t count) {
  f32x16 total = zero();
  for (int64_t i = 0; i < count; i += kLanes) total = fma(load_n(a + i, count - i), load_n(b + i, count - i), total);
  return sum(total);
}

// Tokens from `begin` on, at least one. `columns` holds S without the k uT of the last token.
template <int kCount>
void run(const Head& head, const SlotColumns& slots, int64_t begin, int64_t end, float* columns) {
  constexpr int64_t width = kCount * kLanes;
  const Vectors<kCount> at(slots.count);
  f32x16 change[kCount] = {}, kept = zero();  // u and e^g of the token before
  for (int64_t token = begin; token < end; ++token) {
    const float *q = head.q + token * head.key_stride, *k = head.k + token * head.key_stride;
    const float *before = k - head.key_stride, *v = head.v + token * head.value_stride;
    if (token + 1 < end) {
      prefetch(q + head.key_stride, head.keys);
      prefetch(k + head.key_stride, head.keys);
      prefetch(v + head.value_stride, slots.count);
    }
    f32x16 known[kCount], found[kCount];
    for (int j = 0; j < kCount; ++j) known[j] = found[j] = zero();
    // `row` makes vector j of row i of S.
    auto pass = [&](auto&& row) {
      for (int64_t i = 0; i < head.keys; ++i) {
        const f32x16 key = splat(k[i]), query = splat(q[i]);
        for (int j = 0; j < kCount; ++j) {
          const f32x16 a = row(i, j);
          store(columns + i * width + j * kLanes, a);
          known[j] = fma(key, a, known[j]);
          found[j] = fma(query, a, found[j]);
        }
      }
    };
    if (token > begin)
      pass([&](int64_t i, int j) { return fma(splat(before[i]), change[j], load(columns + i * width + j * kLanes) * kept); });
    else if (slots.source)
      pass([&](int64_t i, int j) { return at.get(slots.source + i * slots.stride, j); });
    else
      pass([&](int64_t, int) { return zero(); });
    kept = exp(splat(head.decay[token * head.heads]));
    const f32x16 beta = splat(head.beta[token * head.heads]), match = splat(dot(q, k, head.keys));
    for (int j = 0; j < kCount; ++j) {
      change[j] = (at.get(v, j) - known[j] * kept) * beta;
      at.put(head.y + token * head.value_stride, j, fma(match, change[j], found[j] * kept) * head.scale);
    }
  }
  const float* before = head.k + (end - 1) * head.key_stride;
  for (int64_t i = 0; slots.target && i < head.keys; ++i)
    for (int j = 0; j < kCount; ++j)
      at.put(slots.target + i * slots.stride, j, fma(splat(before[i]), change[j], load(columns + i * width + j * kLanes) * kept));
}

}  // namespace

KERNEL(delta_rule) {
  const int64_t groups = call.in[0].dim[1], keys = call.in[0].dim[2];
  const int64_t heads = call.in[2].dim[1], values = call.in[2].dim[2];
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const float *decay = call.in[3].as<float>(), *beta = call.in[4].as<float>();
  const SlotState* state = call.in[5].slots;  // null: whole texts, of which nothing is kept
  const int32_t *slots = call.in[6].as<int32_t>(), *segments = call.in[7].as<int32_t>();
  const int64_t sequences = call.in[7].size() - 1, blocks = (values + kTaskColumns - 1) / kTaskColumns;
  const bool tiled = call.flag("tiled");
  const f32x16 scale = splat(static_cast<float>(call.number("scale")));
  float* y = call.out[0].as<float>();
  float* columns = reinterpret_cast<float*>(worker.scratch);  // [K, 16 or 32]
  for (int64_t task; (task = worker.next(sequences * heads * blocks)) < sequences * heads * blocks;) {
    const int64_t sequence = task / (heads * blocks), head = task / blocks % heads, first = task % blocks * kTaskColumns;
    const int64_t group = tiled ? head % groups : head * groups / heads;
    const int64_t begin = segments[sequence], end = segments[sequence + 1];
    const SlotColumns at(state, state ? slots + 2 * sequence : nullptr, head, keys, values, first);
    const Head own{q + group * keys, k + group * keys, v + head * values + first, decay + head, beta + head,
                   y + head * values + first, keys, groups * keys, heads * values, heads, scale};
    if (begin == end)
      at.copy();
    else if (at.count > kLanes)
      run<2>(own, at, begin, end, columns);
    else
      run<1>(own, at, begin, end, columns);
  }
}

}  // namespace weft::ISA
