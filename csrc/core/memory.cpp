#include "core/memory.h"

#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"

namespace weft {

static constexpr size_t kHugePage = size_t{2} << 20;

static size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static constexpr size_t kAligned = 64;

// Where memory comes from, for hosts that have their own; null functions are the system's.
static struct {
  void* (*take)(size_t bytes, void* user);
  void (*give)(void* memory, size_t bytes, void* user);
  void* user;
} host;

// Declared where it is called (capi/weft.cpp): every kernel includes memory.h, and would be compiled again.
void set_allocator(void* (*take)(size_t, void*), void (*give)(void*, size_t, void*), void* user) { host = {take, give, user}; }

// The host's memory begins kAligned to 2 * kAligned bytes before ours, at the address that is written just before ours.
static std::byte* take_from_host(size_t bytes) {
  const size_t wanted = bytes + 2 * kAligned;
  void* taken = wanted < bytes ? nullptr : host.take(wanted, host.user);
  if (!taken) fail(ErrorKind::memory, "memory", "the host refused to allocate " + std::to_string(bytes) + " bytes");
  std::byte* data = static_cast<std::byte*>(taken) + (2 * kAligned - reinterpret_cast<size_t>(taken) % kAligned);
  std::memcpy(data - sizeof taken, &taken, sizeof taken);
  std::memset(data, 0, bytes);
  return data;
}

Memory::Memory(size_t bytes) {
  if (bytes == 0) return;
  if (host.take) {
    data_ = take_from_host(bytes);
    bytes_ = bytes;
    return;
  }
  // From half a huge page on: a whole number of huge pages, with room to move the start to a huge-page boundary.
  bool large = bytes >= kHugePage / 2;
  size_t wanted = round_up(bytes, large ? kHugePage : 4096);
  size_t reserve = wanted + (large ? kHugePage : 0);
  void* start = mmap(nullptr, reserve, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED)
    fail(ErrorKind::memory, "memory", "the system refused to allocate " + std::to_string(bytes) + " bytes");
  auto* base = static_cast<std::byte*>(start);
  if (large) {
    auto address = reinterpret_cast<size_t>(base);
    size_t skip = round_up(address, kHugePage) - address;
    if (skip) munmap(base, skip);
    base += skip;
    if (kHugePage - skip) munmap(base + wanted, kHugePage - skip);
#ifdef MADV_HUGEPAGE
    madvise(base, wanted, MADV_HUGEPAGE);
#endif
  } else {
#ifdef MADV_NOHUGEPAGE
    madvise(base, wanted, MADV_NOHUGEPAGE);
#endif
  }
  data_ = base;
  bytes_ = wanted;
}

Memory::~Memory() {
  if (!data_) return;
  if (!host.take) {
    munmap(data_, bytes_);
    return;
  }
  void* taken;
  std::memcpy(&taken, data_ - sizeof taken, sizeof taken);
  host.give(taken, bytes_ + 2 * kAligned, host.user);
}

std::shared_ptr<std::byte> Arena::take(size_t bytes) {
  constexpr size_t large = size_t{32} << 20;
  if (bytes > large / 2) {
    auto own = std::make_shared<Memory>(bytes);
    return {own, own->data()};
  }
  std::lock_guard<std::mutex> lock(turn_);
  if (!current_ || current_->size() - used_ < bytes) {
    current_ = std::make_shared<Memory>(large);
    used_ = 0;
  }
  std::byte* start = current_->data() + used_;
  used_ += round_up(bytes, 64);
  return {current_, start};
}

void drop_resident(const std::byte* start, size_t bytes) {
#ifdef MADV_DONTNEED
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<size_t>(start);
  const size_t skip = round_up(first, page) - first;
  if (bytes > skip) madvise(const_cast<std::byte*>(start) + skip, bytes - skip, MADV_DONTNEED);
#else
  static_cast<void>(start), static_cast<void>(bytes);
#endif
}

void drop_mapped(std::span<const std::span<const std::byte>> files, const std::byte* start, size_t bytes) {
  // Linux maps what lies this near to a page that is touched, where it is in memory: 64 kB, or a huge page of the file.
  constexpr size_t around = size_t{2} << 20;
  const std::byte* end = start + bytes;
  for (std::span<const std::byte> file : files) {
    const std::byte *file_start = file.data(), *file_end = file_start + file.size();
    if (start < file_start || end > file_end) continue;
    start -= std::min(around, static_cast<size_t>(start - file_start));
    end += std::min(around, static_cast<size_t>(file_end - end));
    return drop_resident(start, static_cast<size_t>(end - start));
  }
}

void read_soon(const std::byte* start, size_t bytes) {
#ifdef MADV_WILLNEED
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t before = reinterpret_cast<size_t>(start) % page;
  madvise(const_cast<std::byte*>(start) - before, bytes + before, MADV_WILLNEED);
#else
  static_cast<void>(start), static_cast<void>(bytes);
#endif
}

void return_freed_memory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace weft
