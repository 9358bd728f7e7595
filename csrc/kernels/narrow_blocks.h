// narrow_blocks: the sizes of what a product in a narrower arithmetic takes at once.
#pragma once
#include "kernels/rows.h"

namespace weft::ISA {

// What numbers are rounded to, as the ops' attribute `to` says it.
enum class Narrow : int { f16, bf16 };

constexpr int64_t kNarrowDepth = 256, kNarrowColumns = 256, kNarrowRows = 256;
constexpr int64_t kNarrowChain = 64;  // rows of B that are rounded together
constexpr int64_t kNarrowStep = 32;   // and of those, what the matrix unit takes at once
constexpr int64_t kNarrowChains = kNarrowDepth / kNarrowChain, kNarrowStrips = kNarrowColumns / 16;

}  // namespace weft::ISA
