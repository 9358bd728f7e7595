#include "bundle/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace weft::bundle {

Blob Folder::open(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail(ErrorKind::not_found, name, std::string("cannot be opened: ") + std::strerror(errno));
  struct Closing {
    int file;
    ~Closing() { close(file); }
  } closing{file};
  struct stat about;
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) fail(ErrorKind::not_found, name, "is not a file");
  const auto size = static_cast<size_t>(about.st_size);
  if (size == 0) return {};
  void* start = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (start == MAP_FAILED) fail(ErrorKind::memory, name, std::string("cannot be mapped: ") + std::strerror(errno));
  return {{static_cast<const std::byte*>(start), size}, std::shared_ptr<void>(start, [size](void* mapped) { munmap(mapped, size); })};
}

}  // namespace weft::bundle
