// delta_rule: per token S = e^g S; u = beta (v - kT S); S = S + k uT; y = scale qT S, one state S [K, V] for each head.
//
// Meaning  weft/ops/recurrent.py
// Layout   q, k [T, G, K], v, y [T, H, V], g, beta [T, H] contiguous f32; state [H, K, V]
// Method   a task is 16 columns of S of one head of one sequence, token after token: columns need nothing of each other;
//          sums over K are in order, so no split of a text changes a bit
// Bound    the chain of tokens: 4 K multiply-adds a column and token, on S in the first cache
#include "core/state.h"
#include "simd/simd.h"

namespace weft::ISA {

namespace {

constexpr int64_t kLanes = 16;

}  // namespace

KERNEL(delta_rule) {
  const int64_t groups = call.in[0].dim[1], keys = call.in[0].dim[2];
  const int64_t heads = call.in[2].dim[1], values = call.in[2].dim[2];
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const float *decay = call.in[3].as<float>(), *beta = call.in[4].as<float>();
  const SlotState& state = *call.in[5].slots;
  const int32_t *slots = call.in[6].as<int32_t>(), *segments = call.in[7].as<int32_t>();
  const int64_t sequences = call.in[6].dim[0], blocks = (values + kLanes - 1) / kLanes;
  const bool tiled = call.flag("tiled");
  const f32x16 scale = splat(static_cast<float>(call.number("scale")));
  float* y = call.out[0].as<float>();
  float* columns = reinterpret_cast<float*>(worker.scratch);  // [K, 16]
  for (int64_t task; (task = worker.next(sequences * heads * blocks)) < sequences * heads * blocks;) {
    const int64_t sequence = task / (heads * blocks), head = task / blocks % heads, first = task % blocks * kLanes;
    const int64_t count = values - first < kLanes ? values - first : kLanes, group = tiled ? head % groups : head * groups / heads;
    const int64_t source = slots[2 * sequence], target = slots[2 * sequence + 1];
    const int64_t place = head * keys * values + first;
    for (int64_t i = 0; i < keys; ++i)
      store(columns + i * kLanes, source < 0 ? zero() : load_n(state.slot(source) + place + i * values, count));
    for (int64_t token = segments[sequence]; token < segments[sequence + 1]; ++token) {
      const float *query = q + (token * groups + group) * keys, *key = k + (token * groups + group) * keys;
      const f32x16 kept = exp(splat(decay[token * heads + head]));
      f32x16 known = zero();
      for (int64_t i = 0; i < keys; ++i) {
        const f32x16 row = load(columns + i * kLanes) * kept;
        store(columns + i * kLanes, row);
        known = fma(splat(key[i]), row, known);
      }
      const int64_t at = (token * heads + head) * values + first;
      const f32x16 change = (load_n(v + at, count) - known) * splat(beta[token * heads + head]);
      f32x16 sum = zero();
      for (int64_t i = 0; i < keys; ++i) {
        const f32x16 row = fma(splat(key[i]), change, load(columns + i * kLanes));
        store(columns + i * kLanes, row);
        sum = fma(splat(query[i]), row, sum);
      }
      store_n(y + at, sum * scale, count);
    }
    for (int64_t i = 0; i < keys; ++i)
      store_n(state.slot(target) + place + i * values, load(columns + i * kLanes), count);
  }
}

}  // namespace weft::ISA
