// memory: 64-byte aligned storage, zeroed; large blocks ask for huge pages (4 kB pages cost a fifth of the bandwidth).
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
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

// Blocks out of few large ones, so that small ones lie in huge pages too: with 4 kB pages the machine stops reading ahead
// at every page's end. A block keeps the large one that it is part of; pages that no block touches cost nothing.
class Arena {
 public:
  // 64-byte aligned, zeroed.
  std::shared_ptr<std::byte> take(size_t bytes);

 private:
  std::mutex turn_;
  std::shared_ptr<Memory> current_;
  size_t used_ = 0;
};

// Gives back the resident pages of a mapped file, which are read from it again when touched; nothing where the system has
// no such call. A first page that is only partly in the range stays.
void drop_resident(const std::byte* start, size_t bytes);

// Hands freed heap memory back to the system, where the C library keeps it otherwise: after building something large
// out of many small pieces, before the weights are read.
void return_freed_memory();

}  // namespace weft
