#include <atomic>
#include <cstring>

#include "core/levels.h"
#include "transport/kernels.h"

namespace weft {

// Levels with vector kernels of their own have these too: a list that CMakeLists.txt generates.
#define WEFT_LEVEL(name)                            \
  namespace name {                                  \
  extern const TransportKernels transport_kernels;  \
  }
#include "vector_level_list.inc"
#undef WEFT_LEVEL

static const TransportKernels* own_kernels(const char* level) {
#define WEFT_LEVEL(name) \
  if (std::strcmp(level, #name) == 0) return &name::transport_kernels;
#include "vector_level_list.inc"
#undef WEFT_LEVEL
  return nullptr;
}

const TransportKernels& transport_kernels(const Level& level) {
  const Level* at = &level;
  while (!own_kernels(at->name)) --at;  // the lowest level that is built always has them
  return *own_kernels(at->name);
}

static std::atomic<const TransportKernels*> active{nullptr};

const TransportKernels& active_transport() {
  const TransportKernels* kernels = active.load(std::memory_order_relaxed);
  if (kernels) return *kernels;
  set_active_transport(transport_kernels(level_named("")));
  return *active.load(std::memory_order_relaxed);
}

void set_active_transport(const TransportKernels& kernels) { active.store(&kernels, std::memory_order_relaxed); }

}  // namespace weft
