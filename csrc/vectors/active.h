// active: the level that this process uses for vectors. Set when weft.vectors is imported; tests set others.
#pragma once
#include "vectors/kernels.h"

namespace weft {

const VectorKernels& active_kernels();  // the best level of this machine until another is set
void set_active(const VectorKernels& kernels);

}  // namespace weft
