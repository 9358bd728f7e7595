// table: the kernels of one instruction set, by op name. Compiled once per target; the list is generated from the file
// names in csrc/kernels.
#include "core/kernel.h"

#define WEFT_KERNEL(name)              \
  namespace weft::ISA {                \
  void name(const Call&, const Worker&); \
  }
#include "kernel_list.inc"
#undef WEFT_KERNEL

#define WEFT_JOIN2(a, b) a##b
#define WEFT_JOIN(a, b) WEFT_JOIN2(a, b)

namespace weft {

extern const KernelEntry WEFT_JOIN(kernels_, ISA)[];
const KernelEntry WEFT_JOIN(kernels_, ISA)[] = {
#define WEFT_KERNEL(name) {#name, &ISA::name},
#include "kernel_list.inc"
    {nullptr, nullptr}};

}  // namespace weft
