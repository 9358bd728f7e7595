#include "vectors/active.h"

#include <atomic>

#include "core/levels.h"

namespace weft {

static std::atomic<const VectorKernels*> active{nullptr};

const VectorKernels& active_kernels() {
  const VectorKernels* kernels = active.load(std::memory_order_relaxed);
  if (kernels) return *kernels;
  set_active(vector_kernels(level_named("")));
  return *active.load(std::memory_order_relaxed);
}

void set_active(const VectorKernels& kernels) { active.store(&kernels, std::memory_order_relaxed); }

}  // namespace weft
