// dequant_grid: the IQ1, IQ2 and IQ3 types, whose elements come in small vectors chosen from a fixed grid.
//
// A grid entry is 16 bits: eight 2-bit (IQ1, IQ2) or four 4-bit (IQ3) indices into a short list of levels, lowest bits
// first. Float order: (scale * level) * sign.
#include "core/half.h"
#include "quant/dequant.h"
#include "quant/iq_grids.inc"

namespace weft {

static constexpr float kLevelsIQ2[4] = {8, 25, 43, 0};
static constexpr float kLevelsIQ3XXS[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static constexpr float kLevelsIQ3S[8] = {1, 3, 5, 7, 9, 11, 13, 15};
static constexpr float kLevelsIQ1[4] = {-1, 0, 1, 0};

// Without a branch: the signs of weights cannot be predicted.
static float signed_by(uint32_t signs, int i) { return 1.0f - 2.0f * static_cast<float>(signs >> i & 1); }

static void eight(uint16_t entry, float scale, uint32_t signs, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = scale * kLevelsIQ2[entry >> (2 * i) & 3] * signed_by(signs, i);
}

static void four(uint16_t entry, const float levels[8], float scale, uint32_t signs, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = scale * levels[entry >> (4 * i) & 7] * signed_by(signs, i);
}

static void eight_shifted(uint16_t entry, float scale, float shift, float* out) {
  for (int i = 0; i < 8; ++i) out[i] = scale * (kLevelsIQ1[entry >> (2 * i) & 3] + shift);
}

void decode(const BlockIQ2XXS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int group = 0; group < 8; ++group) {
    const uint32_t entries = word_of(block.qs + group * 4), rest = word_of(block.qs + group * 4 + 2);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.25f;
    for (int k = 0; k < 4; ++k, out += 8)
      eight(kGridIQ2XXS[entries >> (8 * k) & 255], scale, with_parity(rest >> (7 * k) & 127), out);
  }
}

void decode(const BlockIQ2XS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int k = 0; k < 32; ++k, out += 8) {
    const int scale4 = block.scales[k / 4] >> (k / 2 % 2 * 4) & 15;
    const float scale = d * (0.5f + static_cast<float>(scale4)) * 0.25f;
    eight(kGridIQ2XS[block.qs[k] & 511], scale, with_parity(block.qs[k] >> 9), out);
  }
}

void decode(const BlockIQ2S& block, float* out) {
  const float d = half_to_float(block.d);
  for (int k = 0; k < 32; ++k, out += 8) {
    const int scale4 = block.scales[k / 4] >> (k / 2 % 2 * 4) & 15;
    const float scale = d * (0.5f + static_cast<float>(scale4)) * 0.25f;
    const int high = block.qh[k / 4] >> (k % 4 * 2) & 3;
    eight(kGridIQ2S[block.qs[k] | high << 8], scale, block.signs[k], out);
  }
}

void decode(const BlockIQ3XXS& block, float* out) {
  const float d = half_to_float(block.d);
  for (int group = 0; group < 8; ++group) {
    const uint32_t rest = word_of(block.signs + group * 2);
    const float scale = d * (0.5f + static_cast<float>(rest >> 28)) * 0.5f;
    for (int k = 0; k < 4; ++k, out += 8) {
      const uint32_t signs = with_parity(rest >> (7 * k) & 127);
      const uint8_t* qs = block.qs + group * 8 + k * 2;
      four(kGridIQ3XXS[qs[0]], kLevelsIQ3XXS, scale, signs, out);
      four(kGridIQ3XXS[qs[1]], kLevelsIQ3XXS, scale, signs >> 4, out + 4);
    }
  }
}

void decode(const BlockIQ3S& block, float* out) {
  const float d = half_to_float(block.d);
  for (int k = 0; k < 64; ++k, out += 4) {
    const int scale4 = block.scales[k / 16] >> (k / 8 % 2 * 4) & 15;
    const int high = block.qh[k / 8] >> (k % 8) & 1;
    const auto signs = static_cast<uint32_t>(block.signs[k / 2] >> (k % 2 * 4));
    four(kGridIQ3S[block.qs[k] | high << 8], kLevelsIQ3S, d * static_cast<float>(1 + 2 * scale4), signs, out);
  }
}

void decode(const BlockIQ1S& block, float* out) {
  const float d = half_to_float(block.d);
  for (int k = 0; k < 32; ++k, out += 8) {
    const uint16_t qh = block.qh[k / 4];
    const float scale = d * static_cast<float>(2 * (qh >> 12 & 7) + 1);
    const int high = qh >> (k % 4 * 3) & 7;
    eight_shifted(kGridIQ1[block.qs[k] | high << 8], scale, qh & 0x8000 ? -0.125f : 0.125f, out);
  }
}

void decode(const BlockIQ1M& block, float* out) {
  uint16_t bits = 0;
  for (int i = 0; i < 4; ++i) bits = static_cast<uint16_t>(bits | block.scales[i] >> 12 << (4 * i));
  const float d = half_to_float(bits);
  for (int k = 0; k < 32; ++k, out += 8) {
    const int scale3 = block.scales[k / 8] >> (k / 2 % 4 * 3) & 7;
    const float scale = d * static_cast<float>(2 * scale3 + 1);
    const int high = block.qh[k / 2] >> (k % 2 * 4);
    eight_shifted(kGridIQ1[block.qs[k] | (high & 7) << 8], scale, high & 8 ? -0.125f : 0.125f, out);
  }
}

}  // namespace weft
