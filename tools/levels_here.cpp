// Prints the instruction-set levels that this machine runs, lowest first, separated by semicolons. CMakeLists.txt runs it
// for WEFT_LEVELS=native and WEFT_LEVELS=present.
#include <cstdio>

#include "simd/processor.h"

int main() {
  std::printf("scalar");
#if defined(__x86_64__)
  if (weft::has_avx2()) std::printf(";avx2");
  if (weft::has_avx512()) std::printf(";avx512");
  if (weft::has_amx()) std::printf(";amx");
#elif defined(__aarch64__)
  std::printf(";neon");
  if (weft::has_neon_dot()) std::printf(";neon_dot");
  if (weft::has_neon_i8mm()) std::printf(";neon_i8mm");
#endif
}
