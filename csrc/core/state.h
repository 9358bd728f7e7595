// state: the pooled key/value memory of one layer, cut into pages of kPage tokens.
#pragma once
#include <cstdint>

#include "core/dtype.h"
#include "core/memory.h"

namespace weft {

constexpr int64_t kPage = 32;  // tokens per page; a multiple of the 16 lanes

// Keys are stored transposed inside a page, so that one vector holds 16 keys of one channel and a score needs no
// horizontal sum; values are stored token by token, so that one vector holds 16 channels.
//   key    [pages][heads][dim][kPage]
//   value  [pages][heads][kPage][dim]
struct KvState {
  DType dtype = DType::f32;  // f32 or f16
  int64_t pages = 0, heads = 0, dim = 0;
  Memory key, value;

  KvState(DType dtype, int64_t pages, int64_t heads, int64_t dim)
      : dtype(dtype), pages(pages), heads(heads), dim(dim),
        key(bytes_of(dtype, static_cast<size_t>(pages * heads * dim * kPage)), false),
        value(bytes_of(dtype, static_cast<size_t>(pages * heads * dim * kPage)), false) {}
};

}  // namespace weft
