// memory: 64-byte aligned storage, zeroed; large blocks ask for huge pages (4 kB pages cost a fifth of the bandwidth).
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

namespace weft {

class Memory {
 public:
  Memory() = default;
  // Throws Error(memory) when the system refuses.
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept { *this = std::move(other); }
  Memory& operator=(Memory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Cuts blocks out of a few large ones, so that small blocks lie in huge pages too: with 4 kB pages the prefetcher stops at
// the end of every page. A block keeps its large one alive; pages that no block touches cost nothing.
class Arena {
 public:
  // 64-byte aligned, zeroed.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  std::mutex turn_;
  std::shared_ptr<Memory> current_;
  size_t used_ = 0;
};

// Drops the resident pages of a mapped file, which are read from the file again when touched. Does nothing where the system
// has no such call. A first page that is only partly in the range stays.
void drop_resident(const std::byte* start, size_t bytes);

// The same for a part of one of these mapped files, and for what the system mapped around it; nothing for other memory. Pages
// that another thread is reading are mapped again by themselves.
void drop_mapped(std::span<const std::span<const std::byte>> files, const std::byte* start, size_t bytes);

// Asks the system to read this part of a mapped file soon, where it is not in memory yet.
void read_soon(const std::byte* start, size_t bytes);

// Returns freed heap memory to the system, which the C library would keep. Call it after building something large out of
// many small pieces, before the weights are read.
void return_freed_memory();

}  // namespace weft
