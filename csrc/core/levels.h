// levels: the instruction-set levels that were built, which of them this machine runs, and their kernels.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"

namespace weft {

struct Level {
  const char* name;            // "scalar"; "avx2", "avx512", "amx"; "neon", "neon_dot", "neon_i8mm"
  const KernelEntry* kernels;  // ends with a null name
  bool (*present)();           // does this machine run it
};

const std::vector<Level>& levels();                    // lowest first
std::vector<std::string> levels_present();             // names, lowest first
const Level& level_named(std::string_view name);       // "" is the best present; throws Error(backend)
// The level's kernel, or that of the nearest lower level that has one; null when none has.
Kernel find_kernel(const Level& level, std::string_view op);
std::vector<std::string> kernel_names(const Level& level);  // the ops that find_kernel knows at this level

}  // namespace weft
