#include <cstring>

#include "core/levels.h"
#include "vectors/kernels.h"

namespace weft {

// The levels that were built with vector kernels of their own, lowest first: a list that CMakeLists.txt generates.
#define WEFT_LEVEL(name)                      \
  namespace name {                            \
  extern const VectorKernels vector_kernels;  \
  }
#include "vector_level_list.inc"
#undef WEFT_LEVEL

static const VectorKernels* own_kernels(const char* level) {
#define WEFT_LEVEL(name) \
  if (std::strcmp(level, #name) == 0) return &name::vector_kernels;
#include "vector_level_list.inc"
#undef WEFT_LEVEL
  return nullptr;
}

#ifdef WEFT_BUILT_avx512
namespace avx512 {
extern const IntSum hamming_popcnt;
}

// Processors of the avx512 level that also count bits by one instruction, which the level does not promise.
static const VectorKernels& avx512_kernels() {
  static const VectorKernels kernels = [] {
    VectorKernels all = avx512::vector_kernels;
    if (__builtin_cpu_supports("avx512vpopcntdq")) all.hamming = avx512::hamming_popcnt;
    return all;
  }();
  return kernels;
}
#endif

const VectorKernels& vector_kernels(const Level& level) {
  const Level* at = &level;
  while (!own_kernels(at->name)) --at;  // the lowest level that is built always has them
#ifdef WEFT_BUILT_avx512
  if (std::strcmp(at->name, "avx512") == 0) return avx512_kernels();
#endif
  return *own_kernels(at->name);
}

}  // namespace weft
