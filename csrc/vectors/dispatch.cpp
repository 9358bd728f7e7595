#include <cstring>

#include "core/levels.h"
#include "vectors/kernels.h"

namespace weft {

namespace scalar {
extern const VectorKernels vector_kernels;
}
#ifdef WEFT_X86
namespace avx2 {
extern const VectorKernels vector_kernels;
}
namespace avx512 {
extern const VectorKernels vector_kernels;
extern const IntSum hamming_popcnt;
}
#endif
#ifdef WEFT_ARM
namespace neon {
extern const VectorKernels vector_kernels;
}
namespace neon_dot {
extern const VectorKernels vector_kernels;
}
#endif

#ifdef WEFT_X86
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
  const auto is = [&](const char* name) { return std::strcmp(level.name, name) == 0; };
#ifdef WEFT_X86
  if (is("avx512") || is("amx")) return avx512_kernels();
  if (is("avx2")) return avx2::vector_kernels;
#endif
#ifdef WEFT_ARM
  if (is("neon_dot") || is("neon_i8mm")) return neon_dot::vector_kernels;
  if (is("neon")) return neon::vector_kernels;
#endif
  (void)is;
  return scalar::vector_kernels;
}

}  // namespace weft
