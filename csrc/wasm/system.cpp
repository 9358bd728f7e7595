// system: memory and files where there is no operating system, in place of core/memory.cpp and bundle/folder.cpp.
#include <cstdlib>
#include <cstring>
#include <string>

#include "bundle/files.h"
#include "core/error.h"
#include "core/memory.h"

namespace weft {

namespace {

constexpr size_t kAligned = 64, kBlock = size_t{256} << 10;

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Memory::Memory(size_t bytes) {
  if (bytes == 0) return;
  const size_t wanted = round_up(bytes, kAligned);
  data_ = wanted < bytes ? nullptr : static_cast<std::byte*>(std::aligned_alloc(kAligned, wanted));
  if (!data_) fail(ErrorKind::memory, "memory", "the browser refused to allocate " + std::to_string(bytes) + " bytes");
  std::memset(data_, 0, wanted);
  bytes_ = wanted;
}

Memory::~Memory() { std::free(data_); }

// Pages that nobody touched cost memory here: small blocks share small ones.
std::shared_ptr<std::byte> Arena::take(size_t bytes) {
  if (bytes > kBlock / 4) {
    auto own = std::make_shared<Memory>(bytes);
    return {own, own->data()};
  }
  if (!current_ || current_->size() - used_ < bytes) {
    current_ = std::make_shared<Memory>(kBlock);
    used_ = 0;
  }
  std::byte* start = current_->data() + used_;
  used_ += round_up(bytes, kAligned);
  return {current_, start};
}

void drop_resident(const std::byte*, size_t) {}
void drop_mapped(std::span<const std::span<const std::byte>>, const std::byte*, size_t) {}
void read_soon(const std::byte*, size_t) {}
void return_freed_memory() {}
void set_allocator(void* (*)(size_t, void*), void (*)(void*, size_t, void*), void*) {}

namespace bundle {

Blob Folder::open(const std::string& name) const { fail(ErrorKind::unsupported, name, "there are no folders here: give the files' bytes"); }

}  // namespace bundle

}  // namespace weft

extern "C" int getpid() { return 1; }  // there is one process
extern "C" int __cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }  // and one thread, which does not end
