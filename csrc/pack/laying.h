// laying: weights in the memory that kernels read: which packer a layout has, what it needs, and vectors as float32.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/dtype.h"
#include "core/memory.h"
#include "core/weight.h"
#include "pack/packing.h"

namespace weft {

size_t row_bytes(DType dtype, int64_t cols);  // throws Error(input) where a row is not whole blocks
void check_weight_size(DType dtype, int64_t rows, int64_t cols, size_t given);  // throws Error(input)

PackPart packer_named(std::string_view layout);  // "panels", "halves", "pairs", "split", "quads" or "equalised"

// A weight that `pack` will write, still without memory.
Weight packed_like(PackPart pack, DType stored, int64_t rows, int64_t cols);

// Memory for the weight's bytes, part of the arena where there is one.
std::byte* allocate_weight(Weight& weight, Arena* arena);

// A vector as float32, whatever it is stored as, in the order of `row_order` where it is not null; `plus_one` adds one to
// each value.
std::shared_ptr<Weight> widened_vector(DType stored, int64_t count, const std::byte* data, const int32_t* row_order, bool plus_one, Arena* arena);

}  // namespace weft
