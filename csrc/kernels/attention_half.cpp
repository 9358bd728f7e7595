// attention_half: every token attends to all tokens of its own sequence, in half precision or better.
//
// Meaning  weft/ops/attention.py
// Layout   q, out [T, H, D], k, v [T, G, D] contiguous, H a multiple of G, D at most 128; segments i32 [B+1]; bias
//          [K, H] of f32, f16 or bf16 and buckets f32 [2R+1], both or neither; out may be q
// Method   at levels with half-precision arithmetic: scores, weights and products of 32 channels and of 64 keys are sums
//          of halves, everything longer is a sum of floats. A task is a span of rows of one sequence and key/value head,
//          going through the keys in blocks, four rows at a time. Elsewhere it is `attention`
// Bound    arithmetic, 4 D flops per row and key
#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC)
#include "kernels/attention_bias.h"
#include "kernels/attention_task.h"
#include "kernels/halves.h"

namespace weft::ISA {

constexpr int64_t kKeys = 256;   // of a block
constexpr int64_t kStrip = 32;   // keys whose scores are made together, and channels of a sum of halves
constexpr int64_t kChain = 64;   // keys of a sum of halves
constexpr int64_t kRows = 4;     // of a group
constexpr int64_t kSpan = 512;   // rows of a task
constexpr int64_t kMaxDim = 128;
constexpr float kLowest = -65504.0f;  // of halves
// The largest weight is 2^kLift, so that only weights below 2^(-13.5 - kLift) of it are lost; values are at most
// 64, and 2^kLift * 64 keys of them are still halves.
constexpr float kLift = 3.0f;

// A task's memory. deep: D rounded up to 8.
struct Span {
  int64_t rows, dim, deep;
  Half *q, *key, *value;  // [rows][deep], [deep][kKeys], [kKeys][deep]
  Half* scores;           // [kRows][kKeys], then the weights
  float *out, *top;       // [rows][deep], [rows]: what scores are compared with, 2^kLift below the largest
  float* total;           // [rows][4]
  float lift;             // the factor of the values in `value`
  Lines lines{};
};

WEFT_INLINE Span new_span(const Worker& worker, int64_t dim, const Lines& lines) {
  Span span{};
  span.dim = dim, span.deep = up_to(dim, 8);
  Pieces pieces{worker.scratch};
  pieces.take(span.q, kSpan * span.deep);
  pieces.take(span.key, kKeys * span.deep);
  pieces.take(span.value, kKeys * span.deep);
  pieces.take(span.scores, kRows * kKeys);
  pieces.take(span.out, kSpan * span.deep);
  pieces.take(span.top, kSpan);
  pieces.take(span.total, kSpan * 4);
  span.lines = lines;
  if (lines.bias) pieces.take(span.lines.first, lines.size());
  if (pieces.free > worker.scratch + kScratchBytes) __builtin_trap();  // dim is checked when the program is made
  return span;
}

// Rows of 8 become columns.
WEFT_INLINE void transpose(Half8 (&x)[8]) {
  const auto pairs = [](Half8 a, Half8 b, Half8& low, Half8& high) {
    low = vtrn1q_f16(a, b), high = vtrn2q_f16(a, b);
  };
  const auto fours = [](Half8& a, Half8& b) {
    const uint32x4_t first = vreinterpretq_u32_f16(a), second = vreinterpretq_u32_f16(b);
    a = vreinterpretq_f16_u32(vtrn1q_u32(first, second)), b = vreinterpretq_f16_u32(vtrn2q_u32(first, second));
  };
  const auto halves = [](Half8& a, Half8& b) {
    const uint64x2_t first = vreinterpretq_u64_f16(a), second = vreinterpretq_u64_f16(b);
    a = vreinterpretq_f16_u64(vtrn1q_u64(first, second)), b = vreinterpretq_f16_u64(vtrn2q_u64(first, second));
  };
  for (int i = 0; i < 8; i += 2) pairs(Half8(x[i]), Half8(x[i + 1]), x[i], x[i + 1]);
  for (int i : {0, 1, 4, 5}) fours(x[i], x[i + 2]);
  for (int i = 0; i < 4; ++i) halves(x[i], x[i + 4]);
}

// The power of two that takes the largest of `count` values to 32 to 64; 1 where all are zero or one is not finite.
static float scale_of(const float* value, int64_t stride, int64_t count, int64_t dim) {
  float32x4_t most = vdupq_n_f32(0.0f);
  float rest = 0;
  for (int64_t j = 0; j < count; ++j, value += stride) {
    int64_t c = 0;
    for (; c + 4 <= dim; c += 4) most = vmaxq_f32(most, vabsq_f32(vld1q_f32(value + c)));
    for (; c < dim; ++c) rest = __builtin_fmaxf(rest, __builtin_fabsf(value[c]));
  }
  const uint32_t exponent = bit_cast<uint32_t>(__builtin_fmaxf(rest, vmaxvq_f32(most))) >> 23;
  if (exponent < 16 || exponent > 240) return 1.0f;
  return bit_cast<float>((127u + 132u - exponent) << 23);  // 2^(132 - 127) is 32
}

// `count` keys and values, a block at most; zeros up to a whole strip.
static void pack_block(Span& span, const float* key, const float* value, int64_t stride, int64_t count) {
  const float scale = scale_of(value, stride, count, span.dim);
  span.lift = 1.0f / scale;
  for (int64_t j = 0; j < up_to(count, kStrip); j += 8)
    for (int64_t c = 0; c < span.deep; c += 8) {
      Half8 x[8];
      for (int64_t i = 0; i < 8; ++i) {
        const int64_t there = j + i < count ? span.dim - c : 0;
        x[i] = read_half(key + (j + i) * stride + c, there, 1.0f);
        vst1q_f16(span.value + (j + i) * span.deep + c, read_half(value + (j + i) * stride + c, there, scale));
      }
      transpose(x);
      for (int64_t i = 0; i < 8; ++i) vst1q_f16(span.key + (c + i) * kKeys + j, x[i]);
    }
}

// Scores of four rows with 32 keys.
[[gnu::noinline]] static void score_strip(const Half* q, int64_t deep, const Half* key, Half* scores) {
  for (int64_t first = 0; first < deep; first += kStrip) {
    Half8 sums[kRows][4];
    for (auto& row : sums) row[0] = row[1] = row[2] = row[3] = vdupq_n_f16(0);
    for (int64_t c = first; c < deep && c < first + kStrip; c += 8) {
      Half8 x[kRows];
      for (int64_t i = 0; i < kRows; ++i) x[i] = vld1q_f16(q + i * deep + c);
      each_lane([&]<int at>(Lane<at>) {
        for (int w = 0; w < 4; ++w) {
          const Half8 k = vld1q_f16(key + (c + at) * kKeys + 8 * w);
          for (int64_t i = 0; i < kRows; ++i) sums[i][w] = fma_lane<at>(sums[i][w], k, x[i]);
        }
      });
    }
    for (int64_t i = 0; i < kRows; ++i)
      for (int w = 0; w < 4; ++w) {
        Half* to = scores + i * kKeys + 8 * w;
        vst1q_f16(to, first ? vaddq_f16(vld1q_f16(to), sums[i][w]) : sums[i][w]);
      }
  }
}

// Hides the scores of 32 keys from `count` on.
static void hide(Half* scores, int64_t count) {
  alignas(16) static constexpr uint16_t lane[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int64_t w = 0; w < kStrip; w += 8) {
    const uint16x8_t at = vaddq_u16(vld1q_u16(lane), vdupq_n_u16(static_cast<uint16_t>(w)));
    const uint16x8_t there = vcltq_u16(at, vdupq_n_u16(static_cast<uint16_t>(count)));
    for (int64_t i = 0; i < kRows; ++i) {
      Half* to = scores + i * kKeys + w;
      vst1q_f16(to, vbslq_f16(there, vld1q_f16(to), vdupq_n_f16(static_cast<Half>(kLowest))));
    }
  }
}

// 2^x for x <= kLift, within 1e-3 of it, and 0 below -13.5, where it would soon be subnormal. As exp2_coarse.
WEFT_INLINE Half8 exp2_half(Half8 x) {
  const Half8 big = vdupq_n_f16(1536);  // 1.5 * 2^10: what is added to it is rounded, and lies in the lowest bits
  const Half8 n = vaddq_f16(x, big), f = vsubq_f16(x, vsubq_f16(n, big));
  const Half8 low = vfmaq_f16(vdupq_n_f16(1), vdupq_n_f16(static_cast<Half>(0.69328f)), f);
  const Half8 high = vfmaq_f16(vdupq_n_f16(static_cast<Half>(0.24221f)), vdupq_n_f16(static_cast<Half>(0.055009f)), f);
  const Half8 p = vfmaq_f16(low, high, vmulq_f16(f, f));
  const uint16x8_t power = vaddq_u16(vreinterpretq_u16_f16(p), vshlq_n_u16(vreinterpretq_u16_f16(n), 10));
  return vreinterpretq_f16_u16(vandq_u16(power, vcgtq_f16(x, vdupq_n_f16(-13.5))));
}

WEFT_INLINE float32x4_t widen_sum(Half8 x) {
  return vaddq_f32(vcvt_f32_f16(vget_low_f16(x)), vcvt_high_f32_f16(x));
}

// From the scores of one row to its weights; the sum of these goes to `total`, of which `factor` is left.
[[gnu::noinline]] static void weigh_row(Half* scores, int64_t keys, float top, float factor, float* total) {
  const Half8 most = vdupq_n_f16(static_cast<Half>(top));
  float32x4_t sum = vmulq_n_f32(vld1q_f32(total), factor);
  for (int64_t first = 0; first < keys; first += kChain) {
    Half8 part = vdupq_n_f16(0);
    for (int64_t j = first; j < keys && j < first + kChain; j += 8) {
      const Half8 weight = exp2_half(vsubq_f16(vld1q_f16(scores + j), most));
      vst1q_f16(scores + j, weight);
      part = vaddq_f16(part, weight);
    }
    sum = vaddq_f32(sum, widen_sum(part));
  }
  vst1q_f32(total, sum);
}

// 8 W channels of four rows: out = out * factor + weights . values.
template <int W>
[[gnu::noinline]] static void add_values(float* out, int64_t deep, const Half* weights, const float* factor, const Half* value, int64_t keys,
                       float lift) {
  for (int64_t first = 0; first < keys; first += kChain) {
    Half8 sums[kRows][W];
    for (auto& row : sums)
      for (Half8& sum : row) sum = vdupq_n_f16(0);
    for (int64_t j = first; j < keys && j < first + kChain; j += 8) {
      Half8 p[kRows];
      for (int64_t i = 0; i < kRows; ++i) p[i] = vld1q_f16(weights + i * kKeys + j);
      each_lane([&]<int at>(Lane<at>) {
        for (int w = 0; w < W; ++w) {
          const Half8 v = vld1q_f16(value + (j + at) * deep + 8 * w);
          for (int64_t i = 0; i < kRows; ++i) sums[i][w] = fma_lane<at>(sums[i][w], v, p[i]);
        }
      });
    }
    for (int64_t i = 0; i < kRows; ++i)
      for (int w = 0; w < W; ++w) {
        float* to = out + i * deep + 8 * w;
        const float by = first ? 1.0f : factor[i];
        vst1q_f32(to, vfmaq_n_f32(vmulq_n_f32(vld1q_f32(to), by), vcvt_f32_f16(vget_low_f16(sums[i][w])), lift));
        vst1q_f32(to + 4, vfmaq_n_f32(vmulq_n_f32(vld1q_f32(to + 4), by), vcvt_high_f32_f16(sums[i][w]), lift));
      }
  }
}

// Adds the biases of four rows to their scores with the block at `start`.
static void add_bias(const Span& span, int64_t row, int64_t start, int64_t keys) {
  for (int64_t i = 0; i < kRows; ++i) {
    const Lines::Row own = span.lines.row(row + i);
    Half* scores = span.scores + i * kKeys;
    for (int64_t j = 0; j < keys; j += 8)
      vst1q_f16(scores + j, vaddq_f16(vld1q_f16(scores + j), read_half(own.at(start + j), 8, 1.0f)));
  }
}

// Four rows from `row` on past the present block of `count` keys, the first of which is at `start`.
static void attend_group(const Span& span, int64_t row, int64_t start, int64_t count) {
  const int64_t keys = up_to(count, kStrip), deep = span.deep;
  for (int64_t j = 0; j < keys; j += kStrip) score_strip(span.q + row * deep, deep, span.key + j, span.scores + j);
  if (span.lines.first) add_bias(span, row, start, keys);
  if (count < keys) hide(span.scores + keys - kStrip, count - (keys - kStrip));
  alignas(64) float step[16] = {}, factor[16];
  for (int64_t i = 0; i < kRows; ++i) {
    const Half* scores = span.scores + i * kKeys;
    Half8 most = vld1q_f16(scores);
    for (int64_t j = 8; j < keys; j += 8) most = vmaxq_f16(most, vld1q_f16(scores + j));
    const float before = span.top[row + i];
    const float lowered = static_cast<float>(static_cast<Half>(static_cast<float>(vmaxvq_f16(most)) - kLift));
    const float now = lowered > before || lowered != lowered ? lowered : before;
    step[i] = before - now;
    span.top[row + i] = now;
  }
  store(factor, exp2_coarse(load(step)));
  for (int64_t i = 0; i < kRows; ++i)
    weigh_row(span.scores + i * kKeys, keys, span.top[row + i], factor[i], span.total + (row + i) * 4);
  for (int64_t c = 0; c < deep; c += kStrip) {
    float* out = span.out + row * deep + c;
    const Half* value = span.value + c;
    switch (smaller(kStrip, deep - c) / 8) {
      case 1: add_values<1>(out, deep, span.scores, factor, value, keys, span.lift); break;
      case 2: add_values<2>(out, deep, span.scores, factor, value, keys, span.lift); break;
      case 3: add_values<3>(out, deep, span.scores, factor, value, keys, span.lift); break;
      default: add_values<4>(out, deep, span.scores, factor, value, keys, span.lift);
    }
  }
}

KERNEL(attention_half) {
  constexpr float log2_e = 1.44269504f;
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2], kv_heads = call.in[1].dim[1];
  const int64_t share = heads / kv_heads, stride = kv_heads * dim;
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const int32_t* segments = call.in[3].as<int32_t>();
  float* out = call.out[0].as<float>();
  const float scale = static_cast<float>(call.number("scale")) * log2_e;
  if (dim > kMaxDim) __builtin_trap();  // the op's shape rule refuses it
  const Lines lines = lines_of(optional(call, 4), optional(call, 5), share);
  Span span = new_span(worker, dim, lines);

  deal_spans(worker, segments, call.in[3].cols() - 1, kv_heads, share, kSpan, [&](SpanTask task) {
    const int64_t begin = segments[task.sequence], length = segments[task.sequence + 1] - begin;
    auto offset = [&](int64_t row) {
      const int64_t r = task.first + row;
      return ((begin + r / share) * heads + task.head * share + r % share) * dim;
    };
    span.rows = up_to(task.count, kRows);
    for (int64_t row = 0; row < span.rows; ++row)
      for (int64_t c = 0; c < span.deep; c += 8)
        vst1q_f16(span.q + row * span.deep + c,
                  row < task.count ? read_half(q + offset(row) + c, dim - c, scale) : vdupq_n_f16(0));
    fill(span.out, span.rows * span.deep, [](auto) { return zero(); });
    fill(span.total, span.rows * 4, [](auto) { return zero(); });
    fill(span.top, span.rows, [](auto) { return splat(kLowest); });
    if (lines.bias) span.lines.before = task.first, fill_lines(span.lines, task.head, log2_e);
    for (int64_t start = 0; start < length; start += kKeys) {
      const int64_t from = ((begin + start) * kv_heads + task.head) * dim, count = smaller(kKeys, length - start);
      pack_block(span, k + from, v + from, stride, count);
      for (int64_t row = 0; row < span.rows; row += kRows) attend_group(span, row, start, count);
    }
    for (int64_t row = 0; row < task.count; ++row) {
      const f32x16 by = splat(1.0f / vaddvq_f32(vld1q_f32(span.total + row * 4)));
      const float* from = span.out + row * span.deep;
      fill(out + offset(row), dim, [&](auto at) { return at(from) * by; });
    }
  });
}

}  // namespace weft::ISA
#else
#include "kernels/attention_whole.h"

namespace weft::ISA {

KERNEL(attention_half) {
  attend_sequences(call, worker, false, 0, 0, {nullptr, optional(call, 4), optional(call, 5)});
}

}  // namespace weft::ISA
#endif
