// roofs: the measured limits of the machine: reading memory, and multiply-adds of each arithmetic unit.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/levels.h"
#include "core/pool.h"

namespace weft {

// "read", then the units that a level has: "f32" (fused multiply-add), "int8" (VNNI, sdot), "amx_int8", "amx_bf16".
std::vector<std::string> roof_names(const Level& level);

// Bytes ("read") or operations (a multiply and an add are two) per second of the whole team, once per repeat. Each
// repeat takes `seconds`; `bytes` is what the team reads together, over and over, each worker its own part.
// Throws Error(not_found) for a unit that the level does not have.
std::vector<double> measure_roof(std::string_view name, const Level& level, Pool& pool, size_t bytes, double seconds,
                                 int repeats);

}  // namespace weft
