// state: what outlives a step: the paged keys and values of a layer (KvState), its recurrent or convolution state in
// slots (SlotState), and the adapters of a weight.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/memory.h"
#include "core/weight.h"

namespace weft {

constexpr int64_t kPage = 32;  // tokens per page; a multiple of the 16 lanes

// Keys are stored transposed inside a page, so that one vector holds 16 keys of one channel and a score needs no
// horizontal sum; values are stored token by token, so that one vector holds 16 channels.
//   key    [pages] of [heads] blocks of [dim][kPage]
//   value  [pages] of [heads] blocks of [kPage][dim]
// The elements of an i8, i8r or i4r block are followed by kPage float32, the scales of its tokens; rows of i8r and i4r are
// rotated before they are rounded (docs/decisions/0052). i4r has two codes in a byte, the first in its low half: in keys those of a channel and
// of the next one, [(dim + 1) / 2][kPage], in values those of a channel and of the 16th after it, [kPage][dim up to 32, / 2],
// so that no byte has codes of two tokens, which other threads may be writing. Pages lie `stride` bytes apart, with a
// page's values after its keys and the pages of the other layers in between: for any number of layers the memory in use is
// one contiguous range, which huge pages cover.
struct KvState {
  DType dtype;  // f32, f16, bf16, i8, i8r or i4r
  int64_t pages, heads, dim;
  int64_t element_bytes, block_bytes;  // of a block's elements alone, and of all of it
  int64_t stride;
  std::byte *key = nullptr, *value = nullptr;  // of page 0
  std::shared_ptr<Memory> memory;              // of all layers

  KvState(DType dtype, int64_t pages, int64_t heads, int64_t dim, bool own_memory = true);

  // Whether elements are codes, with a scale for each token; of rows that were rotated. Always inline: kernels of every
  // instruction set call it, and none may leave its copy to the others.
  [[gnu::always_inline]] static bool is_scaled(DType dtype) { return dtype == DType::i8 || is_rotated(dtype); }
  [[gnu::always_inline]] static bool is_rotated(DType dtype) { return dtype == DType::i8r || dtype == DType::i4r; }
  [[gnu::always_inline]] bool rotated() const { return is_rotated(dtype); }
  static bool holds(DType dtype) {
    return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || is_scaled(dtype);
  }

  // A page as bytes: its keys, then its values. Throws Error(input) for a page that does not exist or another size.
  size_t page_bytes() const { return 2 * half_page(); }
  void read_page(int64_t page, std::byte* out, size_t size) const;
  void write_page(int64_t page, const std::byte* data, size_t size);
  void copy_page(int64_t source, int64_t target);

 private:
  size_t half_page() const { return static_cast<size_t>(heads * block_bytes); }
  size_t place_of(int64_t page) const;
  void check_size(size_t size) const;
};

// Gives one shared memory to states that were made without their own and with the same number of pages.
void join_states(std::span<const std::shared_ptr<KvState>> layers);

// The recurrent or convolution state of one layer: a slot holds `size` float32 of one sequence. A step reads a sequence's
// state from one slot and writes it to another. A slot of all layers together is one piece: slots lie `stride` bytes apart.
struct SlotState {
  int64_t slots, size;
  int64_t stride;
  std::byte* data = nullptr;       // of slot 0
  std::shared_ptr<Memory> memory;  // of all layers

  SlotState(int64_t slots, int64_t size, bool own_memory = true);

  // Always inline: kernels of every instruction set call it, and none may leave its copy to the others.
  [[gnu::always_inline]] float* slot(int64_t index) const { return reinterpret_cast<float*>(data + index * stride); }
  size_t slot_bytes() const { return static_cast<size_t>(size) * sizeof(float); }
  // A slot as bytes. A slot that does not exist or another size is an Error(input).
  void read_slot(int64_t index, std::byte* out, size_t bytes) const;
  void write_slot(int64_t index, const std::byte* from, size_t bytes);

 private:
  void check(int64_t index, size_t bytes) const;
};

// Gives the layers, made without memory of their own and with the same number of slots, one memory together.
void join_slots(std::span<const std::shared_ptr<SlotState>> layers);

constexpr int64_t kAdapters = 256;  // indices of adapters; 0 is none

// How an adapter changes the products y = x Wᵀ + b of one weight:
//   gain * (y + up (scale * (down x))) + shift, or up x + shift where down is null: up replaces W.
// down [rank, cols] and up [rows, rank] in panels of f32, f16 or bf16, both of one type; the others f32 vectors. Null
// parts are left out.
struct AdapterPart {
  const Weight *down = nullptr, *up = nullptr;
  const float *scale = nullptr, *gain = nullptr, *shift = nullptr;

  bool present() const { return up || gain || shift; }
};

// The adapters of one weight [rows, cols], or of a stack of them, by index. An entry changes only while no step uses its index.
class AdapterTable {
 public:
  using Kept = std::shared_ptr<const Weight>;

  AdapterTable(int64_t rows, int64_t cols, int64_t matrices = 1);
  AdapterTable(const AdapterTable&) = delete;
  AdapterTable& operator=(const AdapterTable&) = delete;
  // Throws Error(weight) when a part does not fit the weight or another part. `matrix` is which of a stack.
  void put(int64_t index, Kept down, Kept up, Kept scale, Kept gain, Kept shift, int64_t matrix = 0);
  void clear(int64_t index);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t matrices() const { return matrices_; }
  // Always inline: kernels of every instruction set call it, and none may leave its copy to the others.
  [[gnu::always_inline]] const AdapterPart& part(int64_t index, int64_t matrix = 0) const {
    const AdapterPart* own = parts_[index];
    return own ? own[matrix] : kNoPart;
  }

 private:
  struct Entry {
    std::vector<AdapterPart> parts;         // of each matrix
    std::vector<std::array<Kept, 5>> kept;  // owners of what they point to
  };
  static const AdapterPart kNoPart;
  int64_t rows_, cols_, matrices_;
  const AdapterPart* parts_[kAdapters] = {};  // null: no part
  std::unordered_map<int64_t, Entry> entries_;
};

}  // namespace weft
