#include "core/executable.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>
#include <utility>

#include "core/error.h"

namespace weft {

static constexpr size_t kAlign = 64;
static constexpr int64_t kMaxSlot = int64_t{1} << 48;

static size_t aligned(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

Executable::Executable(Program program, Weights weights, States states, const Level& level, Tables tables)
    : program_(std::move(program)), level_(level), operands_(program_.values.size()) {
  for (size_t i = 0; i < program_.values.size(); ++i) {
    operands_[i].dtype = program_.values[i].dtype;
    operands_[i].rank = program_.values[i].rank;
  }
  bind_weights(weights);
  bind_states(states);
  bind_tables(tables);
  for (const Instruction& instruction : program_.body) {
    Bound bound{nullptr, instruction.in, instruction.out, {}, {}, {}};
    if (instruction.op != "reshape") {
      bound.kernel = kernel_of(instruction);
      if (!bound.kernel)
        fail(ErrorKind::backend, "cpu", "no kernel for " + instruction.op + " at level " + level_.name);
    }
    check_stacks(instruction);
    for (const NamedNumber& attr : instruction.attrs) bound.attrs.push_back({attr.name.c_str(), attr.value});
    call_start_.push_back(call_operands_.size());
    call_operands_.resize(call_operands_.size() + bound.in.size() + bound.out.size());
    body_.push_back(std::move(bound));
  }
  progress_ = std::make_unique<Progress[]>(body_.size());
  bind_fetches();
  order_body();
}

// Products of floats by parts, at levels with a matrix unit (decision 0062). Not for programs with a state, which run most
// steps with a row or two and would wait for weights to be split: the choice is the same for every row of a program.
Kernel Executable::kernel_of(const Instruction& instruction) const {
  const auto& values = program_.values;
  const bool keeps = std::any_of(values.begin(), values.end(), [](const Value& value) { return is_state(value.kind); });
  const Kernel parts = keeps ? nullptr : find_kernel(level_, instruction.op + "_parts");
  return parts && worth_parts(instruction) ? parts : find_kernel(level_, instruction.op);
}

// Of what is trained, small matrices are left alone: heads and tiny nets, whose products end before a tile is full.
bool Executable::worth_parts(const Instruction& instruction) const {
  constexpr int64_t kLeast = 128;
  const int matrix = instruction.in[1];
  if (instruction.op == "matmul") {
    const Weight* weight = operands_[static_cast<size_t>(matrix)].weight;
    const bool floats = weight->dtype == DType::f32 || weight->dtype == DType::f16 || weight->dtype == DType::bf16;
    return floats && weight->layout == Layout::panels;
  }
  const Value& value = program_.values[static_cast<size_t>(matrix)];
  const auto large = [&](int axis) {
    const Linear& size = value.shape[static_cast<size_t>(axis)];
    return size.fixed() && size.constant >= kLeast;
  };
  return value.rank >= 2 && large(value.rank - 1) && large(value.rank - 2);
}

// The instructions that an instruction waits for: the last one that wrote what it reads or writes, and those that have since
// read what it writes. Buffers in one slot count as one. An instruction with a state operand counts as writing the state.
void Executable::order_body() {
  struct Place {
    int writer = -1;
    std::vector<int> readers;
  };
  std::vector<Place> slots(program_.slots.size()), values(program_.values.size());
  auto place_of = [&](int index) -> Place& {
    const Value& value = program_.values[static_cast<size_t>(index)];
    return value.kind == ValueKind::buffer ? slots[static_cast<size_t>(value.slot)] : values[static_cast<size_t>(index)];
  };
  auto has_state = [&](int index) { return is_state(program_.values[static_cast<size_t>(index)].kind); };
  for (size_t i = 0; i < body_.size(); ++i) {
    Bound& bound = body_[i];
    if (!bound.kernel) continue;  // a reshape: the same memory under another name
    const int self = static_cast<int>(i);
    auto wait_for = [&](int other) {
      if (other >= 0 && other != self) bound.after.push_back(other);
    };
    std::vector<int> written = bound.out;
    for (int index : bound.in) {
      if (index < 0) continue;
      wait_for(place_of(index).writer);
      if (has_state(index)) written.push_back(index);
      else place_of(index).readers.push_back(self);
    }
    for (int index : written) {
      Place& place = place_of(index);
      wait_for(place.writer);
      for (int reader : place.readers) wait_for(reader);
      place = {self, {}};
    }
    std::sort(bound.after.begin(), bound.after.end());
    bound.after.erase(std::unique(bound.after.begin(), bound.after.end()), bound.after.end());
  }
}

void Executable::bind_weights(const Weights& weights) {
  weights_.resize(program_.values.size());
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Value& value = program_.values[i];
    if (value.kind != ValueKind::weight) continue;
    auto found = weights.find(value.name);
    if (found == weights.end()) fail(ErrorKind::weight, "weights", value.name + " is missing");
    const Weight& weight = *found->second;
    int64_t cols = value.rank ? value.shape[static_cast<size_t>(value.rank - 1)].constant : 1;
    int64_t rows = 1;
    for (int d = 0; d + 1 < value.rank; ++d)
      if (__builtin_mul_overflow(rows, value.shape[static_cast<size_t>(d)].constant, &rows))
        fail(ErrorKind::weight, "weights", value.name + " has more rows than there are numbers");
    if (weight.rows * weight.matrices != rows || weight.cols != cols || weight.dtype != value.dtype)
      fail(ErrorKind::weight, "weights", value.name + " is " + std::string(info(weight.dtype).name) + " (" +
                                  std::to_string(weight.rows * weight.matrices) + ", " + std::to_string(weight.cols) + "); the program needs " +
                                  std::string(info(value.dtype).name) + " (" + std::to_string(rows) + ", " + std::to_string(cols) + ")");
    weights_[i] = found->second;
    operands_[i].weight = &weight;
    if (weight.layout == Layout::rows) operands_[i].data = const_cast<std::byte*>(weight.data);
  }
}

// A product whose rows belong to several matrices reads a stack, and nothing else does.
void Executable::check_stacks(const Instruction& instruction) const {
  const size_t starts = instruction.op.starts_with("matmul_back") ? 2 : 3;
  const bool grouped = instruction.op.starts_with("matmul") && instruction.op != "matmul_i8" && instruction.in.size() > starts && instruction.in[starts] >= 0;
  for (size_t i = 0; i < instruction.in.size(); ++i) {
    const int index = instruction.in[i];
    if (index < 0 || !weights_[static_cast<size_t>(index)]) continue;
    const Value& value = program_.values[static_cast<size_t>(index)];
    const Weight& weight = *weights_[static_cast<size_t>(index)];
    const bool wanted = grouped && i == 1;
    if (wanted != (weight.stack != nullptr) || (wanted && (value.rank != 3 || value.shape[0].constant != weight.matrices)))
      fail(ErrorKind::weight, "weights", value.name + (wanted ? " must be a stack of matrices" : " is a stack of matrices, which " + instruction.op + " does not read"));
  }
}

// The products whose stacks are packed when they are needed; those of one executable share one memory.
void Executable::bind_fetches() {
  for (size_t i = 0; i < body_.size(); ++i)
    for (int index : body_[i].in) {
      const Weight* weight = index < 0 ? nullptr : weights_[static_cast<size_t>(index)].get();
      if (!weight || !weight->experts) continue;
      if (experts_ && experts_ != weight->experts)
        fail(ErrorKind::weight, "weights", program_.values[static_cast<size_t>(index)].name + " has another memory of experts than the stacks before it");
      experts_ = weight->experts;
      fetches_.emplace_back(new Fetch{weight, fetches_.empty() ? nullptr : fetches_.back().get(), i});
      body_[i].fetch = fetches_.back().get();
    }
}

// The whole team packs what a product needs before any of it begins. The first worker plans it, once the product before is
// finished, whose matrices may go then; that one waited for its own predecessor, so that all before are finished too. The lock
// is held for the plan only: who waits for a product with it keeps those from finishing who need it to find their plan done.
void Executable::fetch(Fetch& own) {
  Progress& progress = own.progress;
  if (progress.finished.load(std::memory_order_acquire)) return;
  if (own.before) progress_[own.before->product].wait();
  {
    std::lock_guard<std::mutex> lock(planning_);
    if (!own.planned) {
      const size_t place = body_[own.product].in.size() == 3 ? 2 : 3;  // matmul_back has neither x nor a bias
      const Operand& starts = call_operands_[call_start_[own.product] + place];
      experts_->want(own.stack->place, starts.as<int32_t>(), own.parts);
      own.planned = true;
      if (own.parts.empty()) progress.finished.store(true, std::memory_order_release);
    }
  }
  const auto count = static_cast<int64_t>(own.parts.size());
  for (int64_t part; (part = progress.next.fetch_add(1, std::memory_order_relaxed)) < count;) {
    experts_->pack(own.stack->place, own.parts[static_cast<size_t>(part)]);
    if (progress.done.fetch_add(1, std::memory_order_acq_rel) + 1 == count) progress.finished.store(true, std::memory_order_release);
  }
  progress.wait();
}

// How many float32 a slot of this value has: all of a recurrent state, of a convolution's all but the newest input.
static int64_t slot_size(const Value& value) {
  int64_t size = 1;
  for (int d = 0; d < value.rank; ++d) {
    const int64_t axis = value.shape[static_cast<size_t>(d)].constant;
    const bool width = value.kind == ValueKind::conv && d == 1;
    if (__builtin_mul_overflow(size, width ? axis - 1 : axis, &size)) return -1;
  }
  return size;
}

static bool fits(const Value& value, const KvState& state) {
  return value.kind == ValueKind::kv && value.rank == 2 && state.dtype == value.dtype &&
         state.heads == value.shape[0].constant && state.dim == value.shape[1].constant;
}

static bool fits(const Value& value, const SlotState& state) {
  const bool known = value.kind == ValueKind::recurrent || (value.kind == ValueKind::conv && value.rank == 2);
  return known && value.dtype == DType::f32 && state.size == slot_size(value);
}

void Executable::bind_states(const States& states) {
  states_.resize(program_.values.size());
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Value& value = program_.values[i];
    if (!is_state(value.kind)) continue;
    auto found = states.find(value.name);
    if (found == states.end()) fail(ErrorKind::input, "state", value.name + " is missing");
    const bool good = std::visit([&](const auto& state) { return state && fits(value, *state); }, found->second);
    if (!good) fail(ErrorKind::input, "state", value.name + " does not fit the program");
    states_[i] = found->second;
    if (auto* kv = std::get_if<std::shared_ptr<KvState>>(&states_[i])) operands_[i].state = kv->get();
    if (auto* slots = std::get_if<std::shared_ptr<SlotState>>(&states_[i])) operands_[i].slots = slots->get();
  }
}

void Executable::bind_tables(const Tables& tables) {
  tables_.resize(program_.values.size());
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Value& value = program_.values[i];
    if (value.kind != ValueKind::table) continue;
    auto found = tables.find(value.name);
    if (found == tables.end()) fail(ErrorKind::input, "adapter", "the table " + value.name + " is missing");
    const AdapterTable& table = *found->second;
    const size_t last = static_cast<size_t>(value.rank) - 1;
    const bool fits = value.rank == 2 ? table.matrices() == 1 : value.rank == 3 && table.matrices() == value.shape[0].constant;
    if (!fits || table.rows() != value.shape[last - 1].constant || table.cols() != value.shape[last].constant)
      fail(ErrorKind::input, "adapter", "the table " + value.name + " does not fit the program");
    tables_[i] = found->second;
    operands_[i].table = &table;
  }
}

// Solves `form == size` for the one symbol of the form, or checks it against the known value.
static void settle(const Linear& form, int64_t size, Sizes& sizes, Sizes& known, const std::string& name) {
  const int64_t* factors[] = {&form.t, &form.b, &form.l};
  int64_t* values[] = {&sizes.t, &sizes.b, &sizes.l};
  int64_t* seen[] = {&known.t, &known.b, &known.l};
  for (int i = 0; i < 3; ++i) {
    if (!*factors[i] || *seen[i]) continue;
    int64_t rest = size - form.constant;
    if (rest < 0 || rest % *factors[i]) break;
    *values[i] = rest / *factors[i];
    *seen[i] = 1;
  }
  if (form.at(sizes) != size)
    fail(ErrorKind::shape, "run", name + " has a dimension of " + std::to_string(size) + "; the step needs " +
                               std::to_string(form.at(sizes)));
}

Sizes Executable::read_inputs(std::span<const InputArray> inputs) {
  Sizes sizes, known;
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Value& value = program_.values[i];
    if (value.kind != ValueKind::input) continue;
    const InputArray* given = nullptr;
    for (const InputArray& input : inputs)
      if (input.name == value.name) given = &input;
    if (!given) fail(ErrorKind::input, "run", "the input " + value.name + " is missing");
    if (given->dtype != value.dtype || static_cast<int>(given->shape.size()) != value.rank)
      fail(ErrorKind::shape, "run", "the input " + value.name + " has the wrong type or number of dimensions");
    for (size_t d = 0; d < given->shape.size(); ++d) {
      settle(value.shape[d], given->shape[d], sizes, known, value.name);
      operands_[i].dim[d] = given->shape[d];
    }
    operands_[i].data = const_cast<std::byte*>(given->data);
  }
  return sizes;
}

size_t Executable::arena_bytes(const Sizes& sizes) const {
  size_t total = 0;
  for (const Linear& slot : program_.slots) {
    const int64_t bytes = slot.at(sizes);
    if (bytes < 0 || bytes > kMaxSlot || static_cast<uint64_t>(bytes) > SIZE_MAX / 2 - total - kAlign)
      fail(ErrorKind::memory, "run", "a slot of " + std::to_string(bytes) + " bytes");
    total += aligned(static_cast<size_t>(bytes));
  }
  return total;
}

void Executable::place_values(const Sizes& sizes, std::vector<OutputArray>& outputs, void (*allocate)(OutputArray&)) {
  size_t wanted = arena_bytes(sizes);
  if (wanted > arena_.size()) {
    arena_ = Memory();  // free the old one before allocating the new one
    arena_ = Memory(wanted);
  }
  std::vector<size_t> offsets;
  size_t offset = 0;
  for (const Linear& slot : program_.slots) {
    offsets.push_back(offset);
    offset += aligned(static_cast<size_t>(slot.at(sizes)));
  }
  const std::vector<OutputArray> given = std::exchange(outputs, {});
  for (size_t i = 0; i < program_.values.size(); ++i) {
    const Value& value = program_.values[i];
    Operand& operand = operands_[i];
    if (value.kind == ValueKind::input) continue;
    for (int d = 0; d < value.rank; ++d) operand.dim[d] = value.shape[static_cast<size_t>(d)].at(sizes);
    if (value.kind == ValueKind::buffer) operand.data = arena_.data() + offsets[static_cast<size_t>(value.slot)];
    if (value.kind == ValueKind::output) {
      outputs.push_back({value.name, {operand.dim, operand.dim + value.rank}});
      const auto own = std::find_if(given.begin(), given.end(), [&](const OutputArray& one) { return one.name == value.name; });
      if (own == given.end()) {
        allocate(outputs.back());
      } else if (own->shape == outputs.back().shape) {
        outputs.back().data = own->data;
      } else {
        fail(ErrorKind::input, "run", "the memory for " + value.name + " has another shape");
      }
      operand.data = outputs.back().data;
    }
  }
  for (size_t i = 0; i < body_.size(); ++i) {
    Operand* to = call_operands_.data() + call_start_[i];
    for (int index : body_[i].in) *to++ = index < 0 ? Operand{} : operands_[static_cast<size_t>(index)];
    for (int index : body_[i].out) *to++ = operands_[static_cast<size_t>(index)];
    progress_[i].reset();
  }
  for (const std::unique_ptr<Fetch>& own : fetches_) own->reset();
}

static void print_value(const Value& value, const Operand& operand) {
  if (operand.dtype != DType::f32 || !operand.data) return;
  const float* data = operand.as<float>();
  double squares = 0;
  for (int64_t i = 0; i < operand.size(); ++i) squares += static_cast<double>(data[i]) * data[i];
  std::fprintf(stderr, "%s: norm %.6g, first", value.name.c_str(), std::sqrt(squares));
  for (int64_t i = 0; i < operand.size() && i < 4; ++i) std::fprintf(stderr, " %.6g", static_cast<double>(data[i]));
  std::fprintf(stderr, "\n");
}

void Executable::Progress::report(const Worker& worker) {
  if (worker.taken < worker.tasks &&
      (!worker.taken || done.fetch_add(worker.taken, std::memory_order_acq_rel) + worker.taken < worker.tasks))
    return;
  finished.store(true, std::memory_order_release);
}

bool Executable::Progress::wait() const {
  constexpr int kEager = 32, kPaused = 2000, kYielded = 2100;
  int tries = 0;
  for (; !finished.load(std::memory_order_acquire); ++tries) {
    if (tries < kEager) continue;  // most waits are over by now
    if (tries < kPaused) pause_cpu();
    else if (tries < kYielded) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(50));  // the worker with the last task needs the core
  }
  return tries < kYielded;
}

bool Executable::Assigning::now() {
  constexpr int kFirst = 64, kMost = 4096;
  if (delayed.exchange(false, std::memory_order_relaxed)) wait = steps = std::clamp(2 * steps, kFirst, kMost);
  else if (wait) --wait;
  else if (steps) --steps;
  return !wait;
}

void Executable::work(int index, int workers, bool assigned) {
  using Clock = std::chrono::steady_clock;
  std::byte* scratch = scratch_.data() + static_cast<size_t>(index) * kScratchBytes;
  Clock::time_point before = Clock::now();
  for (size_t i = 0; i < body_.size(); ++i) {
    const Bound& bound = body_[i];
    Progress& progress = progress_[i];
    if (!bound.kernel || (!assigned && progress.finished.load(std::memory_order_acquire))) continue;
    const auto wait = [&] {
      for (int before : bound.after)
        if (!progress_[static_cast<size_t>(before)].wait()) assigning_.delayed.store(true, std::memory_order_relaxed);
    };
    if (!assigned || bound.fetch) wait();
    if (bound.fetch) fetch(*bound.fetch);
    const Gate gate{[](const void* context) { (*static_cast<decltype(wait)*>(context))(); }, &wait};
    const Operand* in = call_operands_.data() + call_start_[i];
    Call call{in, in + bound.in.size(), bound.attrs.data(), static_cast<int>(bound.in.size()),
              static_cast<int>(bound.out.size()), static_cast<int>(bound.attrs.size())};
    Worker worker{index, workers, &progress.next, scratch, assigned ? &gate : nullptr};
    bound.kernel(call, worker);
    progress.report(worker);
    if (!nanoseconds_ && bound.watched.empty()) continue;
    progress.wait();  // printed or timed on its own
    if (index) continue;
    for (int value : bound.watched) print_value(program_.values[static_cast<size_t>(value)], operands_[static_cast<size_t>(value)]);
    if (nanoseconds_) {
      Clock::time_point now = Clock::now();
      (*nanoseconds_)[i] = std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count();
      before = now;
    }
  }
}

void Executable::run(std::span<const InputArray> inputs, std::vector<OutputArray>& outputs, void (*allocate)(OutputArray&),
                     Pool& pool, std::vector<int64_t>* nanoseconds) {
  std::lock_guard<Turn> lock(turn_);
  const std::unique_lock<std::mutex> experts = experts_ ? experts_->begin() : std::unique_lock<std::mutex>();
  Sizes sizes = read_inputs(inputs);
  place_values(sizes, outputs, allocate);
  if (scratch_.size() < static_cast<size_t>(pool.size()) * kScratchBytes)
    scratch_ = Memory(static_cast<size_t>(pool.size()) * kScratchBytes);
  if (nanoseconds) nanoseconds->assign(body_.size(), 0);
  nanoseconds_ = nanoseconds;
  // Steps of many tokens have more tasks than workers, and waits that are long for no such reason.
  constexpr int64_t kFewTokens = 64;
  struct Job {
    Executable* self;
    int workers;
    bool assigned;
  } job{this, teams_.pick(sizes.t, pool.size()), sizes.t <= kFewTokens && assigning_.now()};
  const auto started = std::chrono::steady_clock::now();
  pool.run(
      [](void* context, int index) {
        const Job& job = *static_cast<Job*>(context);
        job.self->work(index, job.workers, job.assigned);
      },
      &job, job.workers);
  teams_.learn(std::chrono::nanoseconds(std::chrono::steady_clock::now() - started).count());
  if (sizes.t > kFewTokens) assigning_.delayed.store(false, std::memory_order_relaxed);
  nanoseconds_ = nullptr;
}

void Executable::watch(std::vector<std::string> names) {
  for (Bound& bound : body_) {
    bound.watched.clear();
    for (int out : bound.out)
      for (const std::string& name : names)
        if (program_.values[static_cast<size_t>(out)].name == name) bound.watched.push_back(out);
  }
}

bool within(std::span<const int32_t> values, int64_t limit) {
  int32_t least = 0, most = 0;
  for (int32_t value : values) least = std::min(least, value), most = std::max(most, value);
  return least >= 0 && (values.empty() || most < limit);
}

}  // namespace weft
