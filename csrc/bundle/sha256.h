// sha256: the digest of a file (FIPS 180-4).
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace weft::bundle {

std::string sha256(std::span<const std::byte> data);  // 64 hexadecimal digits

}  // namespace weft::bundle
