// encode: each block's fields from the scales that scale_search.h finds.
#include "quant/encode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/half.h"
#include "quant/blocks.h"
#include "quant/dequant.h"
#include "quant/scale_search.h"

namespace weft {

namespace {

constexpr std::array<float, 16> kIQ4 = [] {
  std::array<float, 16> wide = {};
  for (size_t i = 0; i < 16; ++i) wide[i] = kLevelsIQ4[i];
  return wide;
}();
constexpr std::array<float, 16> kFP4 = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};  // kLevelsFP4 in rising order

// What rounding an element misses is spread over the elements after it. `x` are those of a block of one row, which change;
// row i of `factor` belongs to element i, `columns` to a row.
struct Feedback {
  float* x;
  const float* factor;
  size_t columns;
  float* missed;
  int count;

  void spread(int i, float made) const {
    const float* row = factor + static_cast<size_t>(i) * columns;
    const float miss = missed[i] = (x[i] - made) / row[i];
    for (int k = i + 1; k < count; ++k) x[k] -= miss * row[k];
  }
};

// Levels of a group as numbers from 0, for packing.
template <class Levels>
void take_levels(const float* x, int count, const Levels& levels, float scale, float min, uint8_t* out,
                 const Feedback* feedback) {
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < count; ++i) {
    const float level = levels.nearest((x[i] + min) * inverse);
    out[i] = static_cast<uint8_t>(level - levels.low);
    if (feedback) feedback->spread(static_cast<int>(x - feedback->x) + i, scale * level - min);
  }
}

void take_indices(const float* x, int count, const Table& table, float scale, uint8_t* out, const Feedback* feedback) {
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < count; ++i) {
    const float level = table.nearest(x[i] * inverse);
    int index = 0;
    while (index < 15 && table.levels[index] != level) ++index;
    out[i] = static_cast<uint8_t>(index);
    if (feedback) feedback->spread(static_cast<int>(x - feedback->x) + i, scale * level);
  }
}

void nibbles(const uint8_t* levels, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((levels[i] & 15) | (levels[i + 16] & 15) << 4);
}

void fifth_bits(const uint8_t* levels, uint8_t out[4]) {
  std::memset(out, 0, 4);
  for (int i = 0; i < 32; ++i) out[i / 8] |= static_cast<uint8_t>((levels[i] >> 4) << (i % 8));
}

// Bits of `levels` from `shift` on, two of them, into the planes that TwoBits (dequant.cpp) reads.
void two_bits(const uint8_t* levels, int shift, uint8_t* planes) {
  std::memset(planes, 0, 64);
  for (int group = 0; group < 16; ++group)
    for (int i = 0; i < 16; ++i)
      planes[group / 8 * 32 + group % 2 * 16 + i] |=
          static_cast<uint8_t>((levels[group * 16 + i] >> shift & 3) << (group / 2 % 4 * 2));
}

void six_bits(const float* scales, const float* mins, uint8_t out[12]) {
  std::memset(out, 0, 12);
  for (int g = 0; g < 8; ++g) {
    const auto scale = static_cast<uint8_t>(scales[g]), min = static_cast<uint8_t>(mins[g]);
    if (g < 4) {
      out[g] |= scale, out[g + 4] |= min;
    } else {
      out[g + 4] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
      out[g - 4] |= static_cast<uint8_t>(scale >> 4 << 6);
      out[g] |= static_cast<uint8_t>(min >> 4 << 6);
    }
  }
}

// One scale a block, levels from -half to half - 1.
template <class Block, int half>
void symmetric(const float* x, const float* w, Block& block, uint8_t* levels, const Feedback* f) {
  const Line line{-half, half - 1};
  const float d = as_half(best_scale(Group{x, w, Block::kCount}, line));
  block.d = float_to_half(d);
  take_levels(x, Block::kCount, line, d, 0.0f, levels, f);
}

void encode_block(const float* x, const float* w, BlockQ4_0& block, const Feedback* f) {
  uint8_t levels[32];
  symmetric<BlockQ4_0, 8>(x, w, block, levels, f);
  nibbles(levels, block.qs);
}

void encode_block(const float* x, const float* w, BlockQ5_0& block, const Feedback* f) {
  uint8_t levels[32];
  symmetric<BlockQ5_0, 16>(x, w, block, levels, f);
  fifth_bits(levels, block.qh);
  nibbles(levels, block.qs);
}

void encode_block(const float* x, const float* w, BlockQ8_0& block, const Feedback* f) {
  // -128 is left out: other readers multiply such levels in pairs of bytes, and two of them would overflow.
  const Line line{-127.0f, 127.0f};
  const float d = as_half(best_scale(Group{x, w, 32}, line)), inverse = d == 0.0f ? 0.0f : 1.0f / d;
  block.d = float_to_half(d);
  for (int i = 0; i < 32; ++i) {
    block.qs[i] = static_cast<int8_t>(line.nearest(x[i] * inverse));
    if (f) f->spread(i, d * block.qs[i]);
  }
}

// A scale and a minimum a block, both halves; the minimum may have any sign.
template <class Block, int top>
void affine(const float* x, const float* w, Block& block, uint8_t* levels, const Feedback* f) {
  const Line line{0.0f, top};
  const Affine best = best_affine(Group{x, w, 32}, line, true);
  const float d = as_half(best.scale), m = as_half(-best.min);
  block.d = float_to_half(d), block.m = float_to_half(m);
  take_levels(x, 32, line, d, -m, levels, f);
}

void encode_block(const float* x, const float* w, BlockQ4_1& block, const Feedback* f) {
  uint8_t levels[32];
  affine<BlockQ4_1, 15>(x, w, block, levels, f);
  nibbles(levels, block.qs);
}

void encode_block(const float* x, const float* w, BlockQ5_1& block, const Feedback* f) {
  uint8_t levels[32];
  affine<BlockQ5_1, 31>(x, w, block, levels, f);
  fifth_bits(levels, block.qh);
  nibbles(levels, block.qs);
}

void encode_block(const float* x, const float* w, BlockQ2K& block, const Feedback* f) {
  const Line line{0.0f, 3.0f};
  float scales[16], mins[16];
  uint8_t levels[256];
  const Pair fit = fit_affine<16, 16>(x, w, line, 15.0f, scales, mins);
  block.d = float_to_half(fit.d), block.dmin = float_to_half(fit.dmin);
  for (int g = 0; g < 16; ++g) {
    block.scales[g] = static_cast<uint8_t>(static_cast<int>(scales[g]) | static_cast<int>(mins[g]) << 4);
    take_levels(x + g * 16, 16, line, fit.d * scales[g], fit.dmin * mins[g], levels + g * 16, f);
  }
  two_bits(levels, 0, block.qs);
}

void encode_block(const float* x, const float* w, BlockQ3K& block, const Feedback* f) {
  const Line line{-4.0f, 3.0f};
  float codes[16];
  uint8_t levels[256];
  const float d = fit_scales<16, 16>(x, w, line, Line{-32.0f, 31.0f}, codes);
  block.d = float_to_half(d);
  std::memset(block.scales, 0, sizeof block.scales);
  std::memset(block.hmask, 0, sizeof block.hmask);
  for (int g = 0; g < 16; ++g) {
    const int code = static_cast<int>(codes[g]) + 32;
    block.scales[g % 8] |= static_cast<uint8_t>((code & 15) << (g / 8 * 4));
    block.scales[8 + g % 4] |= static_cast<uint8_t>((code >> 4) << (g / 4 * 2));
    take_levels(x + g * 16, 16, line, d * codes[g], 0.0f, levels + g * 16, f);
    for (int i = 0; i < 16; ++i)
      block.hmask[g % 2 * 16 + i] |= static_cast<uint8_t>((levels[g * 16 + i] >> 2) << (g / 2));
  }
  two_bits(levels, 0, block.qs);
}

template <class Block, int top>
void groups_of_32(const float* x, const float* w, Block& block, uint8_t* levels, const Feedback* f) {
  const Line line{0.0f, top};
  float scales[8], mins[8];
  const Pair fit = fit_affine<8, 32>(x, w, line, 63.0f, scales, mins);
  block.d = float_to_half(fit.d), block.dmin = float_to_half(fit.dmin);
  six_bits(scales, mins, block.scales);
  for (int g = 0; g < 8; ++g)
    take_levels(x + g * 32, 32, line, fit.d * scales[g], fit.dmin * mins[g], levels + g * 32, f);
  for (int g = 0; g < 8; g += 2)
    for (int i = 0; i < 32; ++i)
      block.qs[g / 2 * 32 + i] = static_cast<uint8_t>((levels[g * 32 + i] & 15) | (levels[g * 32 + 32 + i] & 15) << 4);
}

void encode_block(const float* x, const float* w, BlockQ4K& block, const Feedback* f) {
  uint8_t levels[256];
  groups_of_32<BlockQ4K, 15>(x, w, block, levels, f);
}

void encode_block(const float* x, const float* w, BlockQ5K& block, const Feedback* f) {
  uint8_t levels[256];
  groups_of_32<BlockQ5K, 31>(x, w, block, levels, f);
  std::memset(block.qh, 0, sizeof block.qh);
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i) block.qh[i] |= static_cast<uint8_t>((levels[g * 32 + i] >> 4) << g);
}

void encode_block(const float* x, const float* w, BlockQ6K& block, const Feedback* f) {
  const Line line{-32.0f, 31.0f};
  float codes[16];
  uint8_t levels[256];
  const float d = fit_scales<16, 16>(x, w, line, Line{-128.0f, 127.0f}, codes);
  block.d = float_to_half(d);
  std::memset(block.ql, 0, sizeof block.ql);
  for (int g = 0; g < 16; ++g) {
    block.scales[g] = static_cast<int8_t>(codes[g]);
    take_levels(x + g * 16, 16, line, d * codes[g], 0.0f, levels + g * 16, f);
    for (int i = 0; i < 16; ++i)
      block.ql[g / 8 * 64 + g % 4 * 16 + i] |= static_cast<uint8_t>((levels[g * 16 + i] & 15) << (g / 4 % 2 * 4));
  }
  two_bits(levels, 4, block.qh);
}

void encode_block(const float* x, const float* w, BlockIQ4NL& block, const Feedback* f) {
  const Table table(kIQ4.data());
  uint8_t levels[32];
  const float d = as_half(best_scale(Group{x, w, 32}, table));
  block.d = float_to_half(d);
  take_indices(x, 32, table, d, levels, f);
  nibbles(levels, block.qs);
}

void encode_block(const float* x, const float* w, BlockIQ4XS& block, const Feedback* f) {
  const Table table(kIQ4.data());
  float codes[8];
  const float d = fit_scales<8, 32>(x, w, table, Line{-32.0f, 31.0f}, codes);
  block.d = float_to_half(d);
  block.scales_h = 0;
  std::memset(block.scales_l, 0, sizeof block.scales_l);
  for (int g = 0; g < 8; ++g) {
    const int code = static_cast<int>(codes[g]) + 32;
    block.scales_l[g / 2] |= static_cast<uint8_t>((code & 15) << (g % 2 * 4));
    block.scales_h = static_cast<uint16_t>(block.scales_h | (code >> 4) << (g * 2));
    uint8_t levels[32];
    take_indices(x + g * 32, 32, table, d * codes[g], levels, f);
    nibbles(levels, block.qs + g * 16);
  }
}

void encode_block(const float* x, const float* w, BlockMXFP4& block, const Feedback* f) {
  const Table table(kFP4.data());
  float largest = 0.0f;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::abs(x[i]));
  // The largest element belongs near 6, level 12 of the doubled ones: try the powers of two on both sides.
  int exponent = 0;
  std::frexp(largest, &exponent);
  float least = INFINITY;
  for (int e = exponent + 128 - 5; e <= exponent + 128 - 2; ++e) {
    const auto held = static_cast<uint8_t>(std::clamp(e, 0, 254));
    const float loss = loss_at(Group{x, w, 32}, table, std::bit_cast<float>(half_power_bits(held)), 0.0f);
    if (loss < least) least = loss, block.e = held;
  }
  uint8_t levels[32];
  take_indices(x, 32, table, std::bit_cast<float>(half_power_bits(block.e)), levels, f);
  // From the order of the levels to their codes: sign and magnitude.
  for (uint8_t& level : levels) level = static_cast<uint8_t>(level < 7 ? 15 - level : level == 7 ? 0 : level - 8);
  nibbles(levels, block.qs);
}

template <class Block>
void encode_span(const float* x, const float* importance, std::byte* out, size_t count, size_t columns) {
  Block block;
  float w[Block::kCount];
  for (size_t i = 0; i < count; i += Block::kCount, out += sizeof block) {
    weigh(x + i, importance ? importance + i % columns : nullptr, Block::kCount, w);
    encode_block(x + i, w, block, nullptr);
    std::memcpy(out, &block, sizeof block);
  }
}

// Sixteen rows at a time share each row of the factor.
constexpr size_t kTogether = 16;

template <class Block>
void encode_fed(float* x, const float* importance, const float* factor, std::byte* out, size_t rows, size_t columns) {
  constexpr size_t size = Block::kCount;
  Block block;
  float w[size], missed[kTogether][size];
  for (size_t first = 0; first < rows; first += kTogether) {
    const size_t some = std::min(kTogether, rows - first);
    for (size_t at = 0; at < columns; at += size) {
      for (size_t row = 0; row < some; ++row) {
        float* own = x + (first + row) * columns + at;
        weigh(own, importance ? importance + at : nullptr, static_cast<int>(size), w);
        const Feedback feedback{own, factor + at * columns + at, columns, missed[row], static_cast<int>(size)};
        encode_block(own, w, block, &feedback);
        std::memcpy(out + ((first + row) * columns + at) / size * sizeof block, &block, sizeof block);
      }
      const size_t rest = at + size;
      for (size_t i = 0; i < size; ++i) {
        const float* spread = factor + (at + i) * columns;
        for (size_t row = 0; row < some; ++row) {
          float* own = x + (first + row) * columns;
          const float miss = missed[row][i];
          for (size_t k = rest; k < columns; ++k) own[k] -= miss * spread[k];
        }
      }
    }
  }
}

struct Encoders {
  void (*plain)(const float*, const float*, std::byte*, size_t, size_t) = nullptr;
  void (*fed)(float*, const float*, const float*, std::byte*, size_t, size_t) = nullptr;
};

template <class Block>
constexpr Encoders encoders_for() {
  return {encode_span<Block>, encode_fed<Block>};
}

Encoders encoders_of(DType dtype) {
  switch (dtype) {
    case DType::q4_0: return encoders_for<BlockQ4_0>();
    case DType::q4_1: return encoders_for<BlockQ4_1>();
    case DType::q5_0: return encoders_for<BlockQ5_0>();
    case DType::q5_1: return encoders_for<BlockQ5_1>();
    case DType::q8_0: return encoders_for<BlockQ8_0>();
    case DType::q2_k: return encoders_for<BlockQ2K>();
    case DType::q3_k: return encoders_for<BlockQ3K>();
    case DType::q4_k: return encoders_for<BlockQ4K>();
    case DType::q5_k: return encoders_for<BlockQ5K>();
    case DType::q6_k: return encoders_for<BlockQ6K>();
    case DType::iq4_nl: return encoders_for<BlockIQ4NL>();
    case DType::iq4_xs: return encoders_for<BlockIQ4XS>();
    case DType::mxfp4: return encoders_for<BlockMXFP4>();
    default: return {};
  }
}

}  // namespace

bool can_encode(DType dtype) { return encoders_of(dtype).plain != nullptr; }

static Encoders checked(DType dtype, size_t count, size_t columns) {
  const Encoders found = encoders_of(dtype);
  if (!found.plain) fail(ErrorKind::unsupported, "encode", "cannot be made: " + std::string(info(dtype).name));
  const auto block = static_cast<size_t>(info(dtype).block);
  if (columns == 0 || columns % block || count % columns)
    fail(ErrorKind::input, "encode", "rows of " + std::to_string(columns) + " are not whole blocks of " +
                               std::string(info(dtype).name));
  return found;
}

void encode(DType dtype, const float* values, const float* importance, std::byte* blocks, size_t count, size_t columns) {
  checked(dtype, count, columns).plain(values, importance, blocks, count, columns);
}

void encode_with_feedback(DType dtype, float* values, const float* importance, const float* factor, std::byte* blocks,
                          size_t count, size_t columns) {
  checked(dtype, count, columns).fed(values, importance, factor, blocks, count / columns, columns);
}

}  // namespace weft
