// verify: the rules of a program, as a checker: weft/graph/verify.py in C++, and what Python need not check of its own
// programs. Kernels trust what passed.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "core/program.h"

namespace weft::bundle {

// How each weight lies in memory: weft/backends/cpu/binding.py.
enum class Form : uint8_t { vector, rows, panels, halves, pairs, split, quads, equalised };

// What a step of a verified program must keep to. Indices are at least 0 and below the limit.
struct Limits {
  int64_t ids = std::numeric_limits<int32_t>::max();
  int64_t positions = std::numeric_limits<int32_t>::max();
  int64_t types = std::numeric_limits<int32_t>::max();
  int64_t pages = 0;              // the width of the page table; 0 where there is none
  std::vector<Form> forms;        // by value; of weights only
  std::vector<int64_t> buckets;   // by value: the numbers of a weight that are whole and below this; 0 for all others
};

// Throws Error(format) that names the value or instruction that breaks a rule.
Limits verify(const Program& program);

}  // namespace weft::bundle
