// weight: a tensor of the model as the kernels read it. Immutable once made.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/dtype.h"
#include "core/memory.h"

namespace weft {

// rows     the file's layout: row after row, quantised rows as whole blocks. Borrowed from the mapped file.
// panels   16 rows interleaved, so that one vector holds 16 outputs: see pack/panels.h. Owned, or part of an arena.
// pairs    of bfloat16, for the matrix unit: see pack/pairs.h. As panels.
// quads    of int8, rounded when they were packed: see pack/quads.h. The type is that of the file. As panels.
enum class Layout : uint8_t { rows, panels, pairs, quads };

class ExpertMemory;

struct Weight {
  DType dtype = DType::f32;
  Layout layout = Layout::rows;
  int64_t rows = 0;  // outputs; 1 for a vector
  int64_t cols = 0;  // inputs
  const std::byte* data = nullptr;  // null for a stack
  int64_t matrices = 1;  // of rows x cols each; more than one only in a stack
  const std::byte* const* stack = nullptr;  // the data of each matrix of a stack, which lie anywhere
  ExpertMemory* experts = nullptr;  // of a stack whose matrices are packed when they are needed: see pack/experts.h
  size_t place = 0;                 // its number there
  size_t bytes = 0;
  Memory owned;
  std::shared_ptr<void> borrowed;  // keeps the mapping or the arena's block alive when `owned` is empty
};

}  // namespace weft
