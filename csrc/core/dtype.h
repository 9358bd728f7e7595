// dtype: element types. Quantised types are blocks: `block` elements stored in `bytes` bytes, as GGUF lays them out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace weft {

// name, elements per block, bytes per block, GGUF type id (-1: not a GGUF type)
#define WEFT_DTYPES(X)                                                                                        \
  X(f32, 1, 4, 0) X(f16, 1, 2, 1) X(bf16, 1, 2, 30) X(i8, 1, 1, 24) X(u8, 1, 1, -1) X(i32, 1, 4, 26)          \
  X(i64, 1, 8, 27) X(q4_0, 32, 18, 2) X(q4_1, 32, 20, 3) X(q5_0, 32, 22, 6) X(q5_1, 32, 24, 7)                \
  X(q8_0, 32, 34, 8) X(q2_k, 256, 84, 10) X(q3_k, 256, 110, 11) X(q4_k, 256, 144, 12) X(q5_k, 256, 176, 13)   \
  X(q6_k, 256, 210, 14) X(iq2_xxs, 256, 66, 16) X(iq2_xs, 256, 74, 17) X(iq3_xxs, 256, 98, 18)                \
  X(iq1_s, 256, 50, 19) X(iq4_nl, 32, 18, 20) X(iq3_s, 256, 110, 21) X(iq2_s, 256, 82, 22)                    \
  X(iq4_xs, 256, 136, 23) X(iq1_m, 256, 56, 29) X(tq1_0, 256, 54, 34) X(tq2_0, 256, 66, 35)                   \
  X(mxfp4, 32, 17, 39)                                                                                        \
  /* weft's own, of folders that store integer zero points: d (q - z), exactly */                             \
  X(q4_z, 32, 20, -1)                                                                                         \
  /* keys and values whose rows are rotated, in 8 and 4 bits (two in a byte of a page): see core/state.h */    \
  X(i8r, 1, 1, -1) X(i4r, 1, 1, -1)                                                                           \
  /* activations quantised to int8 rows, with one scale per 32 or per 256 values: see kernels/quantise_rows */ \
  X(a8_32, 32, 40, -1) X(a8_256, 256, 292, -1)

enum class DType : uint8_t {
#define X(name, block, bytes, gguf) name,
  WEFT_DTYPES(X)
#undef X
};

struct DTypeInfo {
  std::string_view name;
  int block;
  int bytes;
  int gguf;
};

const DTypeInfo& info(DType dtype);
DType dtype_named(std::string_view name);  // throws Error(unsupported) for an unknown name

inline bool is_quantised(DType dtype) { return info(dtype).block > 1; }

// Bytes of `count` elements; count must be a multiple of the block.
inline size_t bytes_of(DType dtype, size_t count) {
  const DTypeInfo& d = info(dtype);
  return count / static_cast<size_t>(d.block) * static_cast<size_t>(d.bytes);
}

}  // namespace weft
