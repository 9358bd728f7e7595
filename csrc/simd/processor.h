// processor: which instruction-set levels this processor and its operating system run. Read by core/levels.cpp, and by
// tools/levels_here.cpp, which asks before anything is built.
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft {

inline bool has_scalar() { return true; }

#if defined(__wasm_simd128__)
inline bool has_wasm128() { return true; }  // a module with SIMD is refused where there is none
#endif

#if defined(__x86_64__)
// The compiler's builtins check the operating system's part (saved registers) too.
inline bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
// A process must ask the system for the matrix unit's large registers; its threads inherit the permission.
inline bool has_amx() {
#ifdef __linux__
  static const bool granted = [] {
    constexpr unsigned tiles = 1u << 24, int8 = 1u << 25, bf16 = 1u << 22, all = tiles | int8 | bf16;
    constexpr long ask = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a, b, c, d;
    if (!has_avx512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & all) != all) return false;
    if (!__builtin_cpu_supports("avx512bf16")) return false;
    return syscall(SYS_arch_prctl, ask, tile_data) == 0;
  }();
  return granted;
#else
  return false;
#endif
}
#endif

#if defined(__aarch64__)
// Baseline AArch64 has NEON; the system lists what came later. Where it has no such list, only the baseline is used.
inline bool has_neon() { return true; }
inline bool has_neon_dot() {
#ifdef __linux__
  constexpr unsigned long asimdhp = 1ul << 10, asimddp = 1ul << 20, both = asimdhp | asimddp;  // of AT_HWCAP
  return (getauxval(AT_HWCAP) & both) == both;
#else
  return false;
#endif
}
inline bool has_neon_i8mm() {
#ifdef __linux__
  constexpr unsigned long i8mm = 1ul << 13;  // of AT_HWCAP2
  return has_neon_dot() && (getauxval(AT_HWCAP2) & i8mm);
#else
  return false;
#endif
}
#endif

}  // namespace weft
