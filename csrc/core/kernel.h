// kernel: what a kernel is given. Every worker of the team calls the kernel; the kernel deals its tasks out with
// `for (int64_t task; (task = worker.next(tasks)) < tasks;)`, and returns on the first number past the tasks. Each output
// element is computed whole by one task, in an order that depends on nothing but the operands of its own row, so neither
// the team's size nor the batch changes a bit. Before its first task a kernel reads no buffer: a late worker may
// arrive when others are already past this instruction.
//
// This header is compiled for every instruction set: only always-inline functions here, no standard containers, so that
// no weak symbol built for a newer CPU can be picked by the linker for an older one.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

#define WEFT_INLINE inline __attribute__((always_inline))

namespace weft {

struct Weight;
struct KvState;
struct SlotState;
class AdapterTable;

struct Operand {
  std::byte* data = nullptr;  // null for an optional operand that is absent, for weights in panels, states and tables
  DType dtype = DType::f32;
  int rank = 0;
  int64_t dim[4] = {1, 1, 1, 1};
  const Weight* weight = nullptr;
  const KvState* state = nullptr;
  const SlotState* slots = nullptr;
  const AdapterTable* table = nullptr;

  template <class T>
  WEFT_INLINE T* as() const {
    return reinterpret_cast<T*>(data);
  }
  WEFT_INLINE bool present() const { return data || weight || state || slots || table; }
  WEFT_INLINE int64_t cols() const { return rank ? dim[rank - 1] : 1; }
  WEFT_INLINE int64_t rows() const {  // everything but the last axis
    int64_t count = 1;
    for (int i = 0; i + 1 < rank; ++i) count *= dim[i];
    return count;
  }
  WEFT_INLINE int64_t size() const { return rows() * cols(); }
};

// Attributes of one instruction, numbers and choices; a choice is the index of its word in the op's list.
struct Attr {
  const char* name;
  double value;
};

struct Call {
  const Operand* in;
  const Operand* out;
  const Attr* attrs;
  int n_in, n_out, n_attrs;

  WEFT_INLINE double number(const char* name) const {
    for (int i = 0; i < n_attrs; ++i) {
      const char *a = attrs[i].name, *b = name;
      while (*a && *a == *b) ++a, ++b;
      if (*a == *b) return attrs[i].value;
    }
    __builtin_trap();  // verified when the program was bound: a missing attribute is weft's own bug
  }
  WEFT_INLINE bool flag(const char* name) const { return number(name) != 0; }
  WEFT_INLINE int64_t integer(const char* name) const { return static_cast<int64_t>(number(name)); }
};

constexpr size_t kScratchBytes = size_t{1} << 20;  // per worker, 64-byte aligned, contents undefined

// Waits until what an instruction reads is written.
struct Gate {
  void (*wait)(const void* context);
  const void* context;
};

struct Worker {
  int index;
  int count;
  std::atomic<int64_t>* counter;  // tasks drawn so far
  std::byte* scratch;
  // When given, the first task of each worker is the one of its own index, and only the others are drawn: a worker waits
  // only if it has a task, and mostly draws none from the counter that all of them share.
  const Gate* gate = nullptr;
  mutable int64_t tasks = 0;  // of the instruction
  mutable int64_t taken = 0;  // of them, by this worker

  // A task that nobody else gets, or a number past the `all` tasks. Every call of an instruction gives the same `all`.
  WEFT_INLINE int64_t next(int64_t all) const {
    tasks = all;
    int64_t task;
    if (!gate) {
      task = counter->fetch_add(1, std::memory_order_relaxed);
    } else if (!taken) {
      if ((task = index) < all) gate->wait(gate->context);
    } else {
      task = all <= count ? all : count + counter->fetch_add(1, std::memory_order_relaxed);
    }
    taken += task < all;
    return task;
  }
};

using Kernel = void (*)(const Call&, const Worker&);

struct KernelEntry {
  const char* name;
  Kernel run;
};

}  // namespace weft
