// state: the pooled key/value memory of one layer, cut into pages of kPage tokens.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/memory.h"

namespace weft {

constexpr int64_t kPage = 32;  // tokens per page; a multiple of the 16 lanes

// Keys are stored transposed inside a page, so that one vector holds 16 keys of one channel and a score needs no
// horizontal sum; values are stored token by token, so that one vector holds 16 channels.
//   key    [pages][heads] blocks of [dim][kPage]
//   value  [pages][heads] blocks of [kPage][dim]
// The elements of an i8 block are followed by kPage float32: what a token's elements are to be multiplied by.
struct KvState {
  DType dtype;  // f32, f16, bf16 or i8
  int64_t pages, heads, dim;
  int64_t element_bytes, block_bytes;  // of a block's elements alone, and of all of it
  Memory key, value;

  KvState(DType dtype, int64_t pages, int64_t heads, int64_t dim);

  // A page as bytes: its keys, then its values. A page that is not there or another size is an Error(input).
  size_t page_bytes() const { return 2 * half_page(); }
  void read_page(int64_t page, std::byte* out, size_t size) const;
  void write_page(int64_t page, const std::byte* data, size_t size);
  void copy_page(int64_t source, int64_t target);

 private:
  size_t half_page() const { return static_cast<size_t>(heads * block_bytes); }
  size_t place_of(int64_t page) const;
  void check_size(size_t size) const;
};

}  // namespace weft
