// experts: stacks of matrices that are larger than the memory for them. A matrix is packed out of the mapped file when a step
// needs it, into one of the slots for matrices of its kind; the slot that was used longest ago is taken. Results do not
// depend on what is in memory: the packed bytes are the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/memory.h"
#include "pack/packing.h"

namespace weft {

class ExpertMemory {
 public:
  // How the matrices of a stack are packed, and where they are in the file.
  struct Stack {
    PackPart pack;
    DType stored;
    size_t row_bytes, packed_bytes;  // of a row in the file, of a packed matrix
    int64_t rows, cols;
    std::vector<const std::byte*> sources;   // the rows of each matrix
    std::vector<const int32_t*> row_orders;  // or null
  };
  // Panels of a matrix that are to be packed.
  struct Part {
    size_t matrix;
    int64_t begin, end;
  };
  struct Counts {
    int64_t hits = 0, misses = 0;  // matrices that a product needed and found, or did not
    int64_t resident = 0;          // matrices in memory
    size_t bytes = 0, budget = 0;  // of those, and of all slots
  };

  // `files` are mapped files; the pages that a part has read are dropped after it.
  ExpertMemory(size_t budget, std::vector<std::span<const std::byte>> files) : asked_(budget), files_(std::move(files)) {}
  ExpertMemory(const ExpertMemory&) = delete;
  ExpertMemory& operator=(const ExpertMemory&) = delete;

  // A stack's number, and the data of its matrices, null for those that are not in memory.
  struct Place {
    size_t number;
    const std::byte* const* data;
  };
  // Steps that are running finish first.
  Place add(Stack stack);

  // A step holds the result from its beginning to its end. Throws Error(memory) when the system refuses memory for the slots.
  std::unique_lock<std::mutex> begin();
  // Finds slots for the matrices that have rows: `starts` are those of the product, [matrices + 1]. What is not in memory is
  // added to `parts`, all of which must be packed before the product. Nothing of an earlier product may still be read.
  void want(size_t place, const int32_t* starts, std::vector<Part>& parts);
  // Any number of threads, each with parts of its own.
  void pack(size_t place, const Part& part) const;

  Counts counts() const;

 private:
  struct Kept;
  struct Slot {
    std::byte* data;
    Kept* kept = nullptr;  // whose matrix is in it
    size_t matrix = 0;
  };
  // Slots for matrices of one shape and layout, so that the padding of a slot is never written to.
  struct Kind {
    const Stack* like;
    size_t slot_bytes, total_bytes = 0, most = 0;  // all matrices of the kind, matrices of its largest stack
    Memory memory;
    std::list<Slot> slots;  // those that were used last at the end
  };
  struct Kept {
    Stack stack;
    Kind* kind;
    std::vector<const std::byte*> data;  // null: not in memory
    std::vector<std::list<Slot>::iterator> slots;
  };
  void make_slots();

  const size_t asked_;
  const std::vector<std::span<const std::byte>> files_;
  std::mutex turn_;
  bool ready_ = false;  // the slots are those of all stacks
  std::vector<std::unique_ptr<Kept>> stacks_;
  std::vector<std::unique_ptr<Kind>> kinds_;
  mutable std::mutex counting_;
  Counts counts_;
};

}  // namespace weft
