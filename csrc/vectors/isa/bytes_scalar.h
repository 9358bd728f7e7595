// bytes: the building blocks of ints.cpp, element by element.
#pragma once
#include <cstring>

namespace weft::ISA {

// The correction of dot_bytes for a query: none at this level.
WEFT_INLINE int32_t dot_excess(const uint8_t*, int64_t) { return 0; }

WEFT_INLINE int32_t dot_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  int32_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += static_cast<int8_t>(a[i]) * static_cast<int8_t>(b[i]);
  return total;
}

WEFT_INLINE int32_t apart_bytes(const uint8_t* a, const uint8_t* b, int64_t n) {
  int32_t total = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t apart = static_cast<int8_t>(a[i]) - static_cast<int8_t>(b[i]);
    total += apart < 0 ? -apart : apart;
  }
  return total;
}

WEFT_INLINE int32_t dot_nibbles(const uint8_t* a, const uint8_t* b, int64_t n) {
  int32_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += (a[i] >> 4) * (b[i] >> 4) + (a[i] & 15) * (b[i] & 15);
  return total;
}

WEFT_INLINE int32_t differing_bits(const uint8_t* a, const uint8_t* b, int64_t n) {
  int64_t i = 0, total = 0;
  for (; i + 8 <= n; i += 8) {
    uint64_t x, y;
    std::memcpy(&x, a + i, 8);
    std::memcpy(&y, b + i, 8);
    total += __builtin_popcountll(x ^ y);
  }
  for (; i < n; ++i) total += __builtin_popcount(a[i] ^ b[i]);
  return static_cast<int32_t>(total);
}

}  // namespace weft::ISA
