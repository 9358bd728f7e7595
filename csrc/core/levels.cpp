#include "core/levels.h"

#ifdef WEFT_X86
#include <cpuid.h>
#endif
#if defined(WEFT_ARM) && defined(__linux__)
#include <sys/auxv.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "core/error.h"

namespace weft {

extern const KernelEntry kernels_scalar[];
#ifdef WEFT_X86
extern const KernelEntry kernels_avx2[];
extern const KernelEntry kernels_avx512[];
extern const KernelEntry kernels_amx[];

// The compiler's builtins check the operating system's part (saved registers) too.
static bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("f16c");
}
static bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
// The matrix unit's registers are so large that a process has to ask the system for them; threads inherit the answer.
static bool has_amx() {
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
#ifdef WEFT_ARM
extern const KernelEntry kernels_neon[];
extern const KernelEntry kernels_neon_dot[];
extern const KernelEntry kernels_neon_i8mm[];

// Baseline AArch64 has NEON; what came later the system lists. Where there is no such list, the baseline is used.
static bool has_neon_dot() {
#ifdef __linux__
  constexpr unsigned long asimdhp = 1ul << 10, asimddp = 1ul << 20, both = asimdhp | asimddp;  // of AT_HWCAP
  return (getauxval(AT_HWCAP) & both) == both;
#else
  return false;
#endif
}
static bool has_neon_i8mm() {
#ifdef __linux__
  constexpr unsigned long i8mm = 1ul << 13;  // of AT_HWCAP2
  return has_neon_dot() && (getauxval(AT_HWCAP2) & i8mm);
#else
  return false;
#endif
}
#endif
static bool always() { return true; }

const std::vector<Level>& levels() {
  static const std::vector<Level> all = {
      {"scalar", kernels_scalar, always},
#ifdef WEFT_X86
      {"avx2", kernels_avx2, has_avx2},
      {"avx512", kernels_avx512, has_avx512},
      {"amx", kernels_amx, has_amx},
#endif
#ifdef WEFT_ARM
      {"neon", kernels_neon, always},
      {"neon_dot", kernels_neon_dot, has_neon_dot},
      {"neon_i8mm", kernels_neon_i8mm, has_neon_i8mm},
#endif
  };
  return all;
}

std::vector<std::string> levels_present() {
  std::vector<std::string> names;
  for (const Level& level : levels())
    if (level.present()) names.emplace_back(level.name);
  return names;
}

const Level& level_named(std::string_view name) {
  const Level* best = nullptr;
  for (const Level& level : levels())
    if (level.present() && (name.empty() || name == level.name)) best = &level;
  if (best) return *best;
  std::string known;
  for (const std::string& present : levels_present()) known += (known.empty() ? "" : ", ") + present;
  fail(ErrorKind::backend, "cpu", "this machine cannot run the level '" + std::string(name) + "': it has " + known);
}

Kernel find_kernel(const Level& level, std::string_view op) {
  for (const Level* at = &level;; --at) {
    for (const KernelEntry* entry = at->kernels; entry->name; ++entry)
      if (op == entry->name) return entry->run;
    if (at == &levels().front()) return nullptr;
  }
}

std::vector<std::string> kernel_names(const Level& level) {
  std::vector<std::string> names;
  for (const Level* at = &level;; --at) {
    for (const KernelEntry* entry = at->kernels; entry->name; ++entry)
      if (find_kernel(level, entry->name) == entry->run) names.emplace_back(entry->name);
    if (at == &levels().front()) return names;
  }
}

}  // namespace weft
