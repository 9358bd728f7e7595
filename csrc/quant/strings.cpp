#include "quant/strings.h"

#include <cstring>
#include <string>

#include "core/error.h"

namespace weft {

static constexpr size_t kPrefix = sizeof(uint64_t);

std::unique_ptr<uint64_t[]> string_offsets(std::span<const uint8_t> bytes, size_t start, size_t count, size_t limit) {
  // Every string takes at least its prefix, so the file's size bounds the count before anything is allocated.
  if (start > bytes.size() || count > (bytes.size() - start) / kPrefix)
    fail(ErrorKind::format, "gguf", "string list at byte " + std::to_string(start) + " does not fit in the file: " +
                                std::to_string(count) + " strings");
  auto offsets = std::make_unique_for_overwrite<uint64_t[]>(count + 1);
  size_t at = start;
  for (size_t i = 0; i < count; ++i) {
    offsets[i] = at;
    const size_t remaining = bytes.size() - at;
    if (remaining < kPrefix) fail(ErrorKind::format, "gguf", "string at byte " + std::to_string(at) + " reaches past the end");
    uint64_t length;
    std::memcpy(&length, bytes.data() + at, kPrefix);
    if (length > limit || length > remaining - kPrefix)
      fail(ErrorKind::format, "gguf", "string at byte " + std::to_string(at) + " is too long: " + std::to_string(length) +
                                  " bytes; the limit is " + std::to_string(limit) + ", and it must end inside the file");
    at += kPrefix + length;
  }
  offsets[count] = at;
  return offsets;
}

}  // namespace weft
