// delta_rule_back: the gradients at q, k, v, decay and beta of the gated delta rule, of whole texts.
//
// Meaning  weft/ops/recurrent_backward.py
// Layout   grad, v, to_v [T, H, V], q, k, to_q, to_k [T, G, K], g, beta, to_g, to_beta [T, H] contiguous f32
// Method   a task is all heads of one group of one sequence, 16 columns of a head's state at a time, token after token
//          backwards; states are computed again (recurrent_gradient.h). Sums over heads and columns are in order, those over
//          16 columns a fixed tree
// Bound    arithmetic: about 15 K multiply-adds a column and token, on states in the second cache
#include "kernels/recurrent_gradient.h"

namespace weft::ISA {

namespace {

// Sixteen columns of one head; rows of tokens lie a stride apart.
struct DeltaCell {
  const float *grad, *q, *k, *v, *decay, *beta;
  float *to_q, *to_k, *to_v, *to_decay, *to_beta;
  int64_t keys, key_stride, value_stride, heads, count;
  f32x16 scale;

  WEFT_INLINE f32x16 known(const float* before, const float* key, f32x16 kept) const {
    f32x16 found = zero();
    for (int64_t i = 0; i < keys; ++i) found = fma(splat(key[i]), load(before + i * kLanes) * kept, found);
    return found;
  }

  void forward(int64_t token, const float* from, float* to) const {
    const float* key = k + token * key_stride;
    const f32x16 kept = exp(splat(decay[token * heads]));
    const f32x16 change = (load_n(v + token * value_stride, count) - known(from, key, kept)) * splat(beta[token * heads]);
    for (int64_t i = 0; i < keys; ++i) store(to + i * kLanes, fma(splat(key[i]), change, load(from + i * kLanes) * kept));
  }

  void backward(int64_t token, const float* before, float* slope) const {
    const float *key = k + token * key_stride, *query = q + token * key_stride;
    float *to_query = to_q + token * key_stride, *to_key = to_k + token * key_stride;
    const f32x16 kept = exp(splat(decay[token * heads])), learnt = splat(beta[token * heads]);
    const f32x16 missing = load_n(v + token * value_stride, count) - known(before, key, kept), change = missing * learnt;
    const f32x16 outward = load_n(grad + token * value_stride, count) * scale;
    f32x16 to_change = zero();
    for (int64_t i = 0; i < keys; ++i) {
      const f32x16 after = fma(splat(key[i]), change, load(before + i * kLanes) * kept);
      const f32x16 here = fma(splat(query[i]), outward, load(slope + i * kLanes));
      to_query[i] += sum(after * outward);
      to_change = fma(splat(key[i]), here, to_change);
      store(slope + i * kLanes, here);
    }
    const f32x16 to_value = to_change * learnt;
    store_n(to_v + token * value_stride, to_value, count);
    to_beta[token * heads] += sum(to_change * missing);
    f32x16 fading = zero();
    for (int64_t i = 0; i < keys; ++i) {
      const f32x16 faded = load(before + i * kLanes) * kept, here = load(slope + i * kLanes);
      to_key[i] += sum(here * change - faded * to_value);
      const f32x16 rest = here - splat(key[i]) * to_value;
      fading = fma(rest, faded, fading);
      store(slope + i * kLanes, rest * kept);
    }
    to_decay[token * heads] += sum(fading);
  }
};

}  // namespace

KERNEL(delta_rule_back) {
  const int64_t groups = call.in[1].dim[1], keys = call.in[1].dim[2], heads = call.in[3].dim[1], values = call.in[3].dim[2];
  const float *grad = call.in[0].as<float>(), *q = call.in[1].as<float>(), *k = call.in[2].as<float>();
  const float *v = call.in[3].as<float>(), *decay = call.in[4].as<float>(), *beta = call.in[5].as<float>();
  const int32_t* segments = call.in[6].as<int32_t>();
  float *to_q = call.out[0].as<float>(), *to_k = call.out[1].as<float>(), *to_v = call.out[2].as<float>();
  float *to_decay = call.out[3].as<float>(), *to_beta = call.out[4].as<float>();
  const bool tiled = call.flag("tiled");
  const f32x16 scale = splat(static_cast<float>(call.number("scale")));
  const int64_t tasks = (call.in[6].size() - 1) * groups;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t group = task % groups, begin = segments[task / groups], end = segments[task / groups + 1];
    for (int64_t token = begin; token < end; ++token)
      for (float* to : {to_q, to_k}) std::memset(to + (token * groups + group) * keys, 0, static_cast<size_t>(keys) * sizeof(float));
    for (int64_t head = 0; head < heads; ++head) {
      if ((tiled ? head % groups : head * groups / heads) != group) continue;
      for (int64_t token = begin; token < end; ++token) to_decay[token * heads + head] = to_beta[token * heads + head] = 0;
      for (int64_t first = 0; first < values && begin < end; first += kLanes) {
        const int64_t own = head * values + first, shared = group * keys;
        const DeltaCell cell{grad + own, q + shared, k + shared, v + own, decay + head, beta + head, to_q + shared, to_k + shared,
                             to_v + own, to_decay + head, to_beta + head, keys, groups * keys, heads * values, heads,
                             smaller(kLanes, values - first), scale};
        go_back(cell, keys, begin, end, worker.scratch);
      }
    }
  }
}

}  // namespace weft::ISA
