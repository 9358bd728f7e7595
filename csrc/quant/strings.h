// strings: walks a list of strings as GGUF stores them, each a 64-bit little-endian length and that many bytes.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

namespace weft {

// Where each of `count` strings begins, from byte `start` on, and where the last one ends: count + 1 offsets.
// Throws Error(format) for a string longer than `limit` or reaching past the end of `bytes`; `bytes` is untrusted.
std::unique_ptr<uint64_t[]> string_offsets(std::span<const uint8_t> bytes, size_t start, size_t count, size_t limit);

}  // namespace weft
