#include "core/levels.h"

#include "core/error.h"
#include "simd/processor.h"

namespace weft {

// The levels that were built, lowest first: a list that CMakeLists.txt generates.
#define WEFT_LEVEL(name) extern const KernelEntry kernels_##name[];
#include "level_list.inc"
#undef WEFT_LEVEL

const std::vector<Level>& levels() {
  static const std::vector<Level> all = {
#define WEFT_LEVEL(name) {#name, kernels_##name, has_##name},
#include "level_list.inc"
#undef WEFT_LEVEL
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
  fail(ErrorKind::backend, "cpu",
       "the level '" + std::string(name) + "' is not available: this build has " + known +
           " for this machine; `make test` builds every level that the machine runs");
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
