// scale_search: the scales of groups of elements, and of blocks of groups whose scales are quantised themselves, that lose
// least. For encode.cpp alone.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/half.h"

namespace weft {

// Four lanes, with the operators of C++: the same sums on every machine that has vectors of 16 bytes, and on those that
// have none. Groups are whole numbers of lanes.
using Lanes = float __attribute__((vector_size(16)));
constexpr int kLanes = 4;

inline Lanes load(const float* x) {
  Lanes lanes;
  std::memcpy(&lanes, x, sizeof lanes);
  return lanes;
}

inline float total(Lanes x) { return (x[0] + x[2]) + (x[1] + x[3]); }
inline Lanes all(float x) { return Lanes{x, x, x, x}; }
inline Lanes held(Lanes x, float low, float high) {
  x = x < low ? all(low) : x;
  return x > high ? all(high) : x;
}

// Nearest whole number, for magnitudes below 2^22: the sum has no room for a fraction.
inline Lanes whole(Lanes x) { return (x + 12582912.0f) - 12582912.0f; }

inline float as_half(float x) {
  // A scale beyond the largest half is held there: an infinite one would make a block of NaN.
  return half_to_float(float_to_half(std::clamp(x, -65504.0f, 65504.0f)));
}

// Levels that an element may have: every whole number from low to high.
struct Line {
  float low, high;
  Lanes nearest(Lanes x) const { return whole(held(x, low, high)); }
  float nearest(float x) const { return nearest(all(x))[0]; }
  static constexpr float kGap = 1.0f;  // between two levels at the ends
};

// Sixteen uneven levels, in rising order.
struct Table {
  const float* levels;
  float low, high;
  explicit Table(const float* given) : levels(given), low(given[0]), high(given[15]) {}
  Lanes nearest(Lanes x) const {
    Lanes found = all(levels[0]);
    for (int i = 1; i < 16; ++i) found = x > 0.5f * (levels[i - 1] + levels[i]) ? all(levels[i]) : found;
    return found;
  }
  float nearest(float x) const { return nearest(all(x))[0]; }
  static constexpr float kGap = 20.0f;
};

struct Group {
  const float* x;
  const float* w;
  int count;
};

// The loss of a group at this scale and minimum: elements are scale * level - min.
template <class Levels>
inline float loss_at(const Group& g, const Levels& levels, float scale, float min) {
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  Lanes loss = {};
  for (int i = 0; i < g.count; i += kLanes) {
    const Lanes x = load(g.x + i), miss = x - (scale * levels.nearest((x + min) * inverse) - min);
    loss += load(g.w + i) * miss * miss;
  }
  return total(loss);
}

// The scale that loses least for elements scale * level: the largest element is put near each end of the levels in turn,
// and the least-squares scale of the levels so found is tried.
template <class Levels>
inline float best_scale(const Group& g, const Levels& levels) {
  float extreme = 0.0f;
  for (int i = 0; i < g.count; ++i) extreme = std::abs(g.x[i]) > std::abs(extreme) ? g.x[i] : extreme;
  if (std::abs(extreme) < 1e-30f) return 0.0f;
  float best = 0.0f, gained = -1.0f;
  const auto attempt = [&](float inverse) {
    Lanes alongs = {}, squares = {};
    for (int i = 0; i < g.count; i += kLanes) {
      const Lanes x = load(g.x + i), level = levels.nearest(x * inverse), weighted = load(g.w + i) * level;
      alongs += weighted * x;
      squares += weighted * level;
    }
    const float along = total(alongs), square = total(squares);
    // With the best scale, along / square, the loss is that of zero less along^2 / square.
    if (square > 0.0f && along * along > gained * square) gained = along * along / square, best = along / square;
  };
  for (const float end : {levels.low, levels.high})
    for (int k = -9; k <= 9; ++k) attempt((end + 0.1f * static_cast<float>(k) * Levels::kGap) / extreme);
  for (int round = 0; round < 2 && best != 0.0f; ++round) attempt(1.0f / best);
  return best;
}

struct Affine {
  float scale = 0.0f, min = 0.0f;
};

// Scale and minimum that lose least for elements scale * level - min; the minimum is not negative unless it is free.
inline Affine best_affine(const Group& g, const Line& levels, bool free) {
  float low = free ? g.x[0] : 0.0f, high = g.x[0];
  Lanes weights = {}, sums = {};
  for (int i = 0; i < g.count; ++i) low = std::min(low, g.x[i]), high = std::max(high, g.x[i]);
  for (int i = 0; i < g.count; i += kLanes) weights += load(g.w + i), sums += load(g.w + i) * load(g.x + i);
  const float weight = total(weights), sum = total(sums);
  Affine best{0.0f, -low};
  if (high - low < 1e-30f) return best;
  float least = loss_at(g, levels, 0.0f, -low);
  const auto attempt = [&](float inverse, float min) {
    Lanes ones = {}, squares = {}, alongs = {};
    for (int i = 0; i < g.count; i += kLanes) {
      const Lanes x = load(g.x + i), level = levels.nearest((x + min) * inverse), weighted = load(g.w + i) * level;
      ones += weighted;
      squares += weighted * level;
      alongs += weighted * x;
    }
    const float l1 = total(ones), l2 = total(squares), lx = total(alongs), determinant = weight * l2 - l1 * l1;
    Affine found;
    if (determinant > 0.0f) found = {(weight * lx - l1 * sum) / determinant, (l1 * lx - l2 * sum) / determinant};
    if (determinant <= 0.0f || (!free && found.min < 0.0f)) found = {l2 > 0.0f ? lx / l2 : 0.0f, 0.0f};
    if (const float loss = loss_at(g, levels, found.scale, found.min); loss < least) least = loss, best = found;
  };
  for (int k = -5; k <= 10; ++k) attempt((levels.high + 0.1f * static_cast<float>(k)) / (high - low), -low);
  // A lowest element that matters little need not be the lowest level.
  for (int k = 1; free && k <= 4; ++k)
    for (const int from : {0, 1}) {
      const float part = 0.03f * static_cast<float>(k) * (high - low), range = (high - low) - part * (from ? 2.0f : 1.0f);
      attempt(levels.high / range, -(low + part));
    }
  for (int round = 0; round < 3 && best.scale != 0.0f; ++round) attempt(1.0f / best.scale, best.min);
  return best;
}

inline void weigh(const float* x, const float* importance, int count, float* w) {
  float square = 0.0f;
  for (int i = 0; i < count; ++i) square += x[i] * x[i];
  square /= static_cast<float>(count);
  if (square == 0.0f) square = 1.0f;
  for (int i = 0; i < count; ++i) w[i] = std::sqrt(square + x[i] * x[i]) * (importance ? importance[i] + 1e-9f : 1.0f);
}

// A block of `groups` groups of `size`; elements are d * code * level, codes being whole numbers from `codes.low` to
// `codes.high`. After the groups' own scales are rounded to codes, neighbours of each code and the best d for all are tried.
template <int groups, int size, class Levels>
inline float fit_scales(const float* x, const float* w, const Levels& levels, const Line& codes, float* code) {
  float scale[groups], extreme = 0.0f;
  for (int g = 0; g < groups; ++g) {
    scale[g] = best_scale(Group{x + g * size, w + g * size, size}, levels);
    extreme = std::abs(scale[g]) > std::abs(extreme) ? scale[g] : extreme;
  }
  std::fill_n(code, groups, 0.0f);
  float d = as_half(extreme / codes.low);
  if (d == 0.0f) return 0.0f;
  const auto choose = [&](float given, float* chosen) {
    float loss = 0.0f;
    for (int g = 0; g < groups; ++g) {
      const Group group{x + g * size, w + g * size, size};
      const float middle = codes.nearest(scale[g] / given);
      float least = INFINITY;
      for (const float step : {0.0f, -1.0f, 1.0f}) {
        const float tried = std::clamp(middle + step, codes.low, codes.high);
        if (const float found = loss_at(group, levels, given * tried, 0.0f); found < least)
          least = found, chosen[g] = tried;
      }
      loss += least;
    }
    return loss;
  };
  float least = choose(d, code);
  // The largest scale may have a code somewhat below the end, and the other sign.
  for (const float end : {codes.high, codes.low + 1.0f, codes.high - 1.0f, codes.low + 2.0f}) {
    float tried[groups];
    const float other = as_half(extreme / end);
    if (const float loss = choose(other, tried); loss < least) {
      least = loss, d = other;
      std::copy_n(tried, groups, code);
    }
  }
  for (int round = 0; round < 2; ++round) {
    float along = 0.0f, square = 0.0f;
    for (int i = 0; i < groups * size; ++i) {
      const float unit = code[i / size], inverse = d * unit == 0.0f ? 0.0f : 1.0f / (d * unit);
      const float y = unit * levels.nearest(x[i] * inverse);
      along += w[i] * x[i] * y, square += w[i] * y * y;
    }
    const float next = square > 0.0f ? as_half(along / square) : 0.0f;
    if (next == 0.0f || next == d) break;
    float tried[groups];
    const float loss = choose(next, tried);
    if (!(loss < least)) break;
    least = loss, d = next;
    std::copy_n(tried, groups, code);
  }
  return d;
}

// A block whose elements are d * scale * level - dmin * min, scales and minima being whole numbers from 0 to `top`.
struct Pair {
  float d, dmin;
};
template <int groups, int size>
Pair fit_affine(const float* x, const float* w, const Line& levels, float top, float* scales, float* mins) {
  Affine own[groups];
  float largest = 0.0f, deepest = 0.0f;
  for (int g = 0; g < groups; ++g) {
    own[g] = best_affine(Group{x + g * size, w + g * size, size}, levels, false);
    own[g].scale = std::max(own[g].scale, 0.0f);
    largest = std::max(largest, own[g].scale), deepest = std::max(deepest, own[g].min);
  }
  const Line codes{0.0f, top};
  const auto choose = [&](const Pair& given, float* scale, float* min) {
    float loss = 0.0f;
    for (int g = 0; g < groups; ++g) {
      const Group group{x + g * size, w + g * size, size};
      const float s = given.d == 0.0f ? 0.0f : codes.nearest(own[g].scale / given.d);
      const float m = given.dmin == 0.0f ? 0.0f : codes.nearest(own[g].min / given.dmin);
      float least = INFINITY;
      for (const float step : {0.0f, -1.0f, 1.0f})
        for (const float deeper : {0.0f, -1.0f, 1.0f}) {
          const float one = std::clamp(s + step, 0.0f, top), other = std::clamp(m + deeper, 0.0f, top);
          if (const float found = loss_at(group, levels, given.d * one, given.dmin * other); found < least)
            least = found, scale[g] = one, min[g] = other;
        }
      loss += least;
    }
    return loss;
  };
  Pair best{as_half(largest / top), as_half(deepest / top)};
  float least = choose(best, scales, mins);
  for (int round = 0; round < 2; ++round) {
    // Least squares of d and dmin for the levels, scales and minima at hand.
    float aa = 0.0f, ab = 0.0f, bb = 0.0f, ax = 0.0f, bx = 0.0f;
    for (int i = 0; i < groups * size; ++i) {
      const float unit = best.d * scales[i / size], low = best.dmin * mins[i / size];
      const float a = scales[i / size] * levels.nearest(unit == 0.0f ? 0.0f : (x[i] + low) / unit), b = -mins[i / size];
      aa += w[i] * a * a, ab += w[i] * a * b, bb += w[i] * b * b, ax += w[i] * a * x[i], bx += w[i] * b * x[i];
    }
    const float determinant = aa * bb - ab * ab;
    Pair next = best;
    if (determinant > 1e-6f * aa * bb)
      next = {as_half((ax * bb - bx * ab) / determinant), as_half((bx * aa - ax * ab) / determinant)};
    else if (aa > 0.0f)
      next.d = as_half((ax - best.dmin * ab) / aa);
    if (next.d < 0.0f || next.dmin < 0.0f || (next.d == best.d && next.dmin == best.dmin)) break;
    float scale[groups], min[groups];
    const float loss = choose(next, scale, min);
    if (!(loss < least)) break;
    least = loss, best = next;
    std::copy_n(scale, groups, scales);
    std::copy_n(min, groups, mins);
  }
  return best;
}

}  // namespace weft
