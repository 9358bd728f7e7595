// table: the level's names, shared by its files.
#pragma once
#include "vectors/kernels.h"

// A lambda that kernels are made of: inlined always, or registers would go through memory.
#define WEFT_LAMBDA __attribute__((always_inline))

namespace weft::ISA {

extern const VectorKernels vector_kernels;

void i8_dot(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out);
void i8_absolute(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out);
void i8_squares(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out);
void u4_dot(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out);
void hamming(const void* query, const std::byte* rows, int64_t stride, int64_t n, int64_t size, int32_t* out);

}  // namespace weft::ISA
