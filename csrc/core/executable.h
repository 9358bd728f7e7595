// executable: a program bound to kernels, weights, states and tables of adapters; run() is one step.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "core/kernel.h"
#include "core/levels.h"
#include "core/memory.h"
#include "core/pool.h"
#include "core/program.h"
#include "core/state.h"
#include "core/weight.h"
#include "pack/experts.h"

namespace weft {

struct InputArray {
  std::string_view name;
  DType dtype;
  std::span<const int64_t> shape;
  const std::byte* data;
};

struct OutputArray {
  std::string name;
  std::vector<int64_t> shape;
  std::byte* data = nullptr;  // given, or set by the `allocate` that run() is given
};

class Executable {
 public:
  using Weights = std::unordered_map<std::string, std::shared_ptr<const Weight>>;
  using State = std::variant<std::shared_ptr<KvState>, std::shared_ptr<SlotState>>;
  using States = std::unordered_map<std::string, State>;
  using Tables = std::unordered_map<std::string, std::shared_ptr<AdapterTable>>;

  // Throws when an op has no kernel at the level, or a weight, state or table is missing or does not fit.
  Executable(Program program, Weights weights, States states, const Level& level, Tables tables = {});

  // One step: checks the inputs against the program, finds T, B and L, calls `allocate` for the outputs' memory, runs.
  // Outputs that are given with their memory are written there; it may be that of an input which only this output is made of.
  // Steps of one executable take turns. `nanoseconds`, when given, receives the time of each instruction.
  void run(std::span<const InputArray> inputs, std::vector<OutputArray>& outputs, void (*allocate)(OutputArray&),
           Pool& pool, std::vector<int64_t>* nanoseconds = nullptr);

  const Program& program() const { return program_; }
  const Level& level() const { return level_; }
  size_t arena_bytes(const Sizes& sizes) const;
  void watch(std::vector<std::string> names);  // print these values to stderr as they are computed

 private:
  struct Fetch;
  struct Bound {
    Kernel kernel;  // null for a reshape
    std::vector<int> in, out;
    std::vector<Attr> attrs;
    std::vector<int> watched;
    std::vector<int> after;  // instructions that must finish first: those whose memory this one reads or writes
    Fetch* fetch = nullptr;  // of a product whose stack is packed when it is needed
  };

  // The progress of an instruction: it is finished when all of its tasks are, whoever did them. A cache line for each word:
  // those who wait read `finished` only, and do not slow down those who draw tasks and report them.
  struct Progress {
    alignas(64) std::atomic<int64_t> next{0};  // tasks drawn
    alignas(64) std::atomic<int64_t> done{0};  // tasks reported
    alignas(64) std::atomic<bool> finished{false};

    void reset() {
      next.store(0, std::memory_order_relaxed);
      done.store(0, std::memory_order_relaxed);
      finished.store(false, std::memory_order_relaxed);
    }
    void report(const Worker& worker);
    bool wait() const;  // false: it took so long that the system must have suspended a worker
  };

  // What a product packs before it runs: the matrices of its stack that are not in memory.
  struct Fetch {
    const Weight* stack;
    Fetch* before = nullptr;  // of the product before it that has one
    size_t product;
    std::vector<ExpertMemory::Part> parts{};
    bool planned = false;  // the parts are those of this step
    Progress progress{};   // its tasks are the parts

    void reset() { parts.clear(), planned = false, progress.reset(); }
  };

  // Whether workers have a first task of their own in each instruction (kernel.h), which is quickest while all of them run. A
  // worker that the system suspends would then hold one for milliseconds, so that after such a wait all tasks are drawn by
  // whoever is there, for 64 steps, and for twice as many each time that it happens again.
  struct Assigning {
    std::atomic<bool> delayed{false};
    int wait = 0, steps = 0;  // steps until tasks are assigned again, and of the last wait

    bool now();
  };

  void bind_weights(const Weights& weights);
  void check_stacks(const Instruction& instruction) const;
  void bind_fetches();
  void fetch(Fetch& own);
  void bind_states(const States& states);
  void bind_tables(const Tables& tables);
  Kernel kernel_of(const Instruction& instruction) const;  // null where the level has none
  bool worth_parts(const Instruction& instruction) const;
  void order_body();
  Sizes read_inputs(std::span<const InputArray> inputs);
  void place_values(const Sizes& sizes, std::vector<OutputArray>& outputs, void (*allocate)(OutputArray&));
  void work(int index, int workers, bool assigned);

  Program program_;
  const Level& level_;
  std::vector<std::shared_ptr<const Weight>> weights_;
  std::vector<State> states_;
  std::vector<std::shared_ptr<AdapterTable>> tables_;
  std::vector<Bound> body_;
  std::vector<Operand> operands_;  // one per value
  std::vector<Operand> call_operands_;  // operands of every instruction, gathered before the step
  std::vector<size_t> call_start_;
  std::unique_ptr<Progress[]> progress_;
  std::vector<std::unique_ptr<Fetch>> fetches_;
  ExpertMemory* experts_ = nullptr;  // of all stacks that have one
  std::mutex planning_;
  Assigning assigning_;
  TeamSizes teams_;
  Memory arena_, scratch_;
  Turn turn_;
  std::vector<int64_t>* nanoseconds_ = nullptr;
};

// Whether all are at least 0 and below `limit`: indices that kernels will trust.
bool within(std::span<const int32_t> values, int64_t limit);

}  // namespace weft
