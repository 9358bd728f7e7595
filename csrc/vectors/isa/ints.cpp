// ints: sums over rows of int8, of two 4-bit codes a byte, and of bits. Exact, so the same at every level.
//
// Layout   a query, contiguous; rows, contiguous in themselves, `stride` bytes apart; at most 65,536 elements
// Method   whole registers, then the tail (masked, or byte by byte); no sum of a lane leaves 32 bits
// Bound    memory, or the cache that the codes fit
#include "vectors/isa/table.h"

#if defined(WEFT_ISA_avx512)
#include "vectors/isa/bytes_avx512.h"
#elif defined(WEFT_ISA_avx2)
#include "vectors/isa/bytes_avx2.h"
#elif defined(WEFT_ISA_neon)
#include "vectors/isa/bytes_neon.h"
#else
#include "vectors/isa/bytes_scalar.h"
#endif

namespace weft::ISA {

constexpr int64_t kAheadBytes = 2048;  // prefetched: the hardware's prefetcher stops at the end of a page

constexpr int64_t kCachedBytes = 512 << 10;  // as many rows are taken from the second cache, and not asked for ahead

WEFT_INLINE void ask_for(const std::byte* row, int64_t stride, int64_t size) {
  const int64_t apart = stride < 0 ? -stride : stride;
  if (!apart) return;
  const std::byte* later = row + (1 + kAheadBytes / apart) * stride;
  for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(later + at);
}

template <class F>
WEFT_INLINE void each_row(const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out, F f) {
  for (int64_t r = 0; r < n; ++r) {
    ask_for(rows + r * stride, stride, size);
    out[r] = f(reinterpret_cast<const uint8_t*>(rows + r * stride));
  }
}

void i8_dot(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out) {
  const uint8_t* q = static_cast<const uint8_t*>(query);
#if defined(WEFT_ISA_neon) && defined(__ARM_FEATURE_DOTPROD)
  for (; n >= 4 && size % 16 == 0 && n * size <= kCachedBytes; n -= 4, rows += 4 * stride, out += 4)
    dot_bytes_of_four(reinterpret_cast<const uint8_t*>(rows), stride, q, size, out);
#endif
  const int32_t excess = dot_excess(q, size);
  each_row(rows, stride, n, size, out, [=](const uint8_t* row) WEFT_LAMBDA { return dot_bytes(row, q, size) - excess; });
}

void i8_squares(const void*, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out) {
  each_row(rows, stride, n, size, out,
           [=](const uint8_t* row) WEFT_LAMBDA { return dot_bytes(row, row, size) - dot_excess(row, size); });
}

void i8_absolute(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out) {
  const uint8_t* q = static_cast<const uint8_t*>(query);
  each_row(rows, stride, n, size, out, [=](const uint8_t* row) WEFT_LAMBDA { return apart_bytes(row, q, size); });
}

void u4_dot(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out) {
  const uint8_t* q = static_cast<const uint8_t*>(query);
  each_row(rows, stride, n, size, out, [=](const uint8_t* row) WEFT_LAMBDA { return dot_nibbles(row, q, size); });
}

void hamming(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out) {
  const uint8_t* q = static_cast<const uint8_t*>(query);
#ifdef WEFT_ISA_neon
  for (; n >= 4 && four_rows_fit(size); n -= 4, rows += 4 * stride, out += 4)
    differing_bits_of_four(reinterpret_cast<const uint8_t*>(rows), stride, q, size, out);
#endif
  each_row(rows, stride, n, size, out, [=](const uint8_t* row) WEFT_LAMBDA { return differing_bits(row, q, size); });
}

#ifdef WEFT_ISA_avx512
WEFT_POPCNT static void hamming_by_instruction(const void* query, const std::byte* rows, int64_t stride, int64_t n,
                                               int64_t size, int32_t* out) {
  const uint8_t* q = static_cast<const uint8_t*>(query);
  for (int64_t r = 0; r < n; ++r) {
    ask_for(rows + r * stride, stride, size);
    out[r] = counted_bits(reinterpret_cast<const uint8_t*>(rows + r * stride), q, size);
  }
}
extern const IntSum hamming_popcnt;
const IntSum hamming_popcnt = &hamming_by_instruction;
#endif

}  // namespace weft::ISA
