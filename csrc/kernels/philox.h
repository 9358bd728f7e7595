// philox: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011), a generator without a state: what it gives is a function of
// a key and a counter, so any worker draws any number, in any order.
#pragma once
#include <cmath>
#include <cstdint>

#include "kernels/rows.h"

namespace weft::ISA {

constexpr int64_t kTurn = 8;    // numbers of 16 bits in a turn
constexpr int64_t kTurns = 16;  // turns at a time

// What a row draws with: the key of its sequence, its place in it, the place in the model, the head.
struct Draw {
  uint32_t low, high, place, site, head;
};

// words [4][kTurns] of `count` turns from `first` on; the loops have no branches, so that they become vectors
WEFT_INLINE void philox(uint32_t words[4][kTurns], Draw draw, int64_t first, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t a = static_cast<uint32_t>(first + i), b = draw.place, c = draw.site, d = draw.head;
    uint32_t low = draw.low, high = draw.high;
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t one = static_cast<uint64_t>(a) * 0xD2511F53u, two = static_cast<uint64_t>(c) * 0xCD9E8D57u;
      a = static_cast<uint32_t>(two >> 32) ^ b ^ low;
      b = static_cast<uint32_t>(two);
      c = static_cast<uint32_t>(one >> 32) ^ d ^ high;
      d = static_cast<uint32_t>(one);
      low += 0x9E3779B9u, high += 0xBB67AE85u;
    }
    words[0][i] = a, words[1][i] = b, words[2][i] = c, words[3][i] = d;
  }
}

// Which elements are left out, and what the others are multiplied by.
struct Dropping {
  uint32_t limit;
  float factor;
  explicit Dropping(double rate)
      : limit(static_cast<uint32_t>(std::nearbyint(rate * 65536.0))),
        factor(static_cast<float>(65536.0 / (65536.0 - static_cast<double>(limit)))) {}

  // to [turns * kTurn]: what elements from turn `first` on are multiplied by, 0 or the factor
  WEFT_INLINE void fill(float* to, Draw draw, int64_t first, int64_t turns) const {
    for (int64_t at = 0; at < turns; at += kTurns) {
      const int64_t count = smaller(kTurns, turns - at);
      uint32_t words[4][kTurns];
      philox(words, draw, first + at, count);
      for (int64_t i = 0; i < count; ++i)
        for (int64_t word = 0; word < 4; ++word) {
          float* pair = to + (at + i) * kTurn + 2 * word;
          pair[0] = (words[word][i] & 0xFFFFu) < limit ? 0.0f : factor;
          pair[1] = (words[word][i] >> 16) < limit ? 0.0f : factor;
        }
    }
  }
};

}  // namespace weft::ISA
