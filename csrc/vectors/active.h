// active: the level that this process uses for vectors. Set when weft.vectors is imported; tests set others.
#pragma once
#include "vectors/kernels.h"

namespace weft {

const VectorKernels& active_kernels();  // of the best level that this machine runs, until another is set
void set_active(const VectorKernels& kernels);

}  // namespace weft
