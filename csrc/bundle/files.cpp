#include "bundle/files.h"

#include "core/error.h"

namespace weft::bundle {

Blob InMemory::open(const std::string& name) const {
  const auto found = files_.find(name);
  if (found == files_.end()) fail(ErrorKind::not_found, name, "is not in the bundle");
  return {found->second, nullptr};
}

}  // namespace weft::bundle
