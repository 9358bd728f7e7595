// state: what outlives a step: the pooled key/value memory of a layer, cut into pages of kPage tokens, and the adapters
// of a weight.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>

#include "core/dtype.h"
#include "core/memory.h"
#include "core/weight.h"

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

constexpr int64_t kAdapters = 256;  // indices of adapters; 0 is none

// What an adapter makes of the products y = x Wᵀ + b of one weight:
//   gain * (y + up (scale * (down x))) + shift, or up x + shift where there is no down: a weight in place of W.
// down [rank, cols] and up [rows, rank] in panels of f32, f16 or bf16, both of one type; the others f32 vectors. What is
// null is left out.
struct AdapterPart {
  const Weight *down = nullptr, *up = nullptr;
  const float *scale = nullptr, *gain = nullptr, *shift = nullptr;

  bool present() const { return up || gain || shift; }
};

// The adapters of one weight [rows, cols], by index. An entry is changed only while no step has its index.
class AdapterTable {
 public:
  using Kept = std::shared_ptr<const Weight>;

  AdapterTable(int64_t rows, int64_t cols);
  // Throws Error(weight) when a part does not fit the weight or another part.
  void put(int64_t index, Kept down, Kept up, Kept scale, Kept gain, Kept shift);
  void clear(int64_t index);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  const AdapterPart* parts() const { return parts_; }

 private:
  int64_t rows_, cols_;
  AdapterPart parts_[kAdapters];
  std::unordered_map<int64_t, std::array<Kept, 5>> kept_;  // what the parts point to, by index
};

}  // namespace weft
