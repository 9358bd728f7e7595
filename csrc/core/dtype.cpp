#include "core/dtype.h"

#include "core/error.h"

namespace weft {

static const DTypeInfo kTypes[] = {
#define X(name, block, bytes, gguf) {#name, block, bytes, gguf},
    WEFT_DTYPES(X)
#undef X
};

const DTypeInfo& info(DType dtype) { return kTypes[static_cast<size_t>(dtype)]; }

DType dtype_named(std::string_view name) {
  for (size_t i = 0; i < std::size(kTypes); ++i)
    if (kTypes[i].name == name) return static_cast<DType>(i);
  fail(ErrorKind::unsupported, "dtype", "unknown element type: " + std::string(name));
}

}  // namespace weft
