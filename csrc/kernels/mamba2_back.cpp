// mamba2_back: the gradients at x, b, c and the rates of Mamba2's scan, of whole texts.
//
// Meaning  weft/ops/recurrent_backward.py
// Layout   grad, x, to_x [T, H, P], b, c, to_b, to_c [T, G, N], dt, to_dt [T, H], a, d [H] contiguous f32
// Method   a task is all heads of one group of one sequence, 16 columns of a head's state at a time, token after token
//          backwards; states are computed again (recurrent_gradient.h). Sums over heads and columns are in order, those over
//          16 columns a fixed tree
// Bound    arithmetic: about 10 N multiply-adds a column and token, on states in the second cache
#include "kernels/recurrent_gradient.h"

namespace weft::ISA {

namespace {

// Sixteen columns of one head; rows of tokens lie a stride apart.
struct MambaCell {
  const float *grad, *x, *b, *c, *rate;
  float *to_x, *to_b, *to_c, *to_rate;
  int64_t size, state_stride, value_stride, heads, count;
  float decay, skip;

  WEFT_INLINE f32x16 kept(int64_t token) const { return exp(splat(rate[token * heads] * decay)); }
  WEFT_INLINE f32x16 change(int64_t token) const { return load_n(x + token * value_stride, count) * splat(rate[token * heads]); }

  void forward(int64_t token, const float* from, float* to) const {
    const f32x16 by = kept(token), more = change(token);
    const float* into = b + token * state_stride;
    for (int64_t i = 0; i < size; ++i) store(to + i * kLanes, fma(splat(into[i]), more, load(from + i * kLanes) * by));
  }

  void backward(int64_t token, const float* before, float* slope) const {
    const float *into = b + token * state_stride, *away = c + token * state_stride;
    float *to_into = to_b + token * state_stride, *to_away = to_c + token * state_stride;
    const f32x16 by = kept(token), more = change(token), outward = load_n(grad + token * value_stride, count);
    f32x16 to_change = zero(), fading = zero();
    for (int64_t i = 0; i < size; ++i) {
      const f32x16 old = load(before + i * kLanes), here = fma(splat(away[i]), outward, load(slope + i * kLanes));
      to_away[i] += sum(fma(splat(into[i]), more, old * by) * outward);
      to_into[i] += sum(here * more);
      to_change = fma(splat(into[i]), here, to_change);
      fading = fma(here, old, fading);
      store(slope + i * kLanes, here * by);
    }
    store_n(to_x + token * value_stride, fma(splat(skip), outward, to_change * splat(rate[token * heads])), count);
    const f32x16 through = fma(fading * by, splat(decay), to_change * load_n(x + token * value_stride, count));
    to_rate[token * heads] += sum(through);
  }
};

}  // namespace

KERNEL(mamba2_back) {
  const int64_t heads = call.in[1].dim[1], values = call.in[1].dim[2], groups = call.in[2].dim[1], size = call.in[2].dim[2];
  const float *grad = call.in[0].as<float>(), *x = call.in[1].as<float>(), *b = call.in[2].as<float>(), *c = call.in[3].as<float>();
  const float *rate = call.in[4].as<float>(), *decay = call.in[5].as<float>(), *skip = call.in[6].as<float>();
  const int32_t* segments = call.in[7].as<int32_t>();
  float *to_x = call.out[0].as<float>(), *to_b = call.out[1].as<float>(), *to_c = call.out[2].as<float>();
  float* to_rate = call.out[3].as<float>();
  const int64_t tasks = (call.in[7].size() - 1) * groups;
  for (int64_t task; (task = worker.next(tasks)) < tasks;) {
    const int64_t group = task % groups, begin = segments[task / groups], end = segments[task / groups + 1];
    for (int64_t token = begin; token < end; ++token)
      for (float* to : {to_b, to_c}) std::memset(to + (token * groups + group) * size, 0, static_cast<size_t>(size) * sizeof(float));
    for (int64_t head = 0; head < heads; ++head) {
      if (head * groups / heads != group) continue;
      for (int64_t token = begin; token < end; ++token) to_rate[token * heads + head] = 0;
      for (int64_t first = 0; first < values && begin < end; first += kLanes) {
        const int64_t own = head * values + first, shared = group * size;
        const MambaCell cell{grad + own, x + own, b + shared, c + shared, rate + head, to_x + own, to_b + shared, to_c + shared,
                             to_rate + head, size, groups * size, heads * values, heads, smaller(kLanes, values - first),
                             decay[head], skip[head]};
        go_back(cell, size, begin, end, worker.scratch);
      }
    }
  }
}

}  // namespace weft::ISA
