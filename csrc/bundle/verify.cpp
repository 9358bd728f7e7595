#include "bundle/verify.h"

#include <algorithm>
#include <array>
#include <string>

#include "bundle/rules.h"
#include "core/error.h"
#include "core/state.h"
#include "pack/panels.h"

namespace weft::bundle {

namespace {

constexpr int64_t kMaxSize = int64_t{1} << 40, kMaxBytes = int64_t{1} << 60;  // weft/graph/verify.py
constexpr int64_t kMaxFixed = int64_t{1} << 31;  // of a fixed axis: kernels have indices of 32 bits in places

class Checker {
 public:
  explicit Checker(const Program& program) : program_(program), written_(program.values.size(), false) {}

  Limits check() {
    limits_.buckets.assign(program_.values.size(), 0);
    limits_.forms.assign(program_.values.size(), Form::rows);
    for (size_t i = 0; i < program_.values.size(); ++i) {
      const Value& value = program_.values[i];
      check_value(value);
      written_[i] = value.kind != ValueKind::buffer && value.kind != ValueKind::output;
    }
    for (size_t i = 0; i < program_.body.size(); ++i) check_instruction(program_.body[i], static_cast<int>(i));
    for (size_t i = 0; i < program_.values.size(); ++i) need(written_[i], program_.values[i].name, "is never written");
    check_slots();
    find_forms();
    return std::move(limits_);
  }

 private:
  void need(bool condition, std::string_view where, std::string_view what) const {
    if (!condition) fail(ErrorKind::format, "program " + program_.name, std::string(where) + " " + std::string(what));
  }

  // Bytes as a linear form; an Error where they are beyond all memory.
  Linear bytes_of_value(const Value& value) const {
    Linear total{0, 0, 0, 1};
    const auto times = [&](const Linear& a, int64_t factor) {
      Linear out;
      const int64_t from[] = {a.t, a.b, a.l, a.constant};
      int64_t* to[] = {&out.t, &out.b, &out.l, &out.constant};
      for (int i = 0; i < 4; ++i)
        need(!__builtin_mul_overflow(from[i], factor, to[i]) && *to[i] < kMaxBytes && *to[i] > -kMaxBytes, value.name, "is beyond all memory");
      return out;
    };
    for (int d = 0; d < value.rank; ++d) {
      Linear size = value.shape[static_cast<size_t>(d)];
      if (d + 1 == value.rank && is_quantised(value.dtype)) size.constant = size.constant / info(value.dtype).block;
      total = size.fixed() ? times(total, size.constant) : times(size, total.constant);
    }
    return times(total, info(value.dtype).bytes);
  }

  void check_type(const Value& value) const {
    using enum DType;
    const DType type = value.dtype;
    const bool a8 = type == a8_32 || type == a8_256;
    bool fits = false;
    switch (value.kind) {
      case ValueKind::weight: fits = type == f32 || type == f16 || type == bf16 || (is_quantised(type) && !a8); break;
      case ValueKind::kv: fits = KvState::holds(type); break;
      case ValueKind::input: fits = type == i32; break;
      case ValueKind::table: fits = type == f32; break;
      case ValueKind::output: fits = type == f32; break;
      case ValueKind::buffer: fits = type == f32 || type == bf16 || type == i8 || a8; break;
      default: need(false, value.name, "is of a kind that bundles do not have");
    }
    need(fits, value.name, "has a type that its kind cannot have");
#if defined(WEFT_FEW_TYPES)  // tools/build_wasm.py, which writes the list of the types that states have there
    bool kept = value.kind != ValueKind::kv;
#define WEFT_STATE(name) kept = kept || type == name;
#include "state_list.inc"
#undef WEFT_STATE
    if (!kept) fail(ErrorKind::unsupported, "bundle", "this build does not keep keys and values in " + std::string(info(type).name));
#endif
  }

  void check_input(const Value& value) const {
    struct Known {
      std::string_view name;
      Linear size;
    };
    static constexpr Known known[] = {{"ids", {1, 0, 0, 0}}, {"positions", {1, 0, 0, 0}}, {"types", {1, 0, 0, 0}}, {"rows", {0, 0, 1, 0}},
                                      {"segments", {0, 1, 0, 1}}, {"spans", {0, 1, 0, 1}}, {"pages", {0, 1, 0, 0}},
                                      {"adapters", {0, 1, 0, 0}}};
    const auto* found = std::find_if(std::begin(known), std::end(known), [&](const Known& one) { return one.name == value.name; });
    need(found != std::end(known), value.name, "is not an input that bundles have");
    const bool pages = value.name == "pages";
    need(value.rank == (pages ? 2 : 1) && same(value.shape[0], found->size), value.name, "is an input of another shape than a step has");
    need(!pages || (value.shape[1].fixed() && value.shape[1].constant > 0 && value.shape[1].constant < (1 << 26)), value.name, "must be [B, P]");
  }

  void check_value(const Value& value) {
    check_type(value);
    need(value.rank > 0, value.name, "must have 1 to 4 axes");
    need(value.kind != ValueKind::kv || value.rank == 2, value.name, "must be a state [heads, dim]");
    need(value.kind != ValueKind::table || (value.rank == 2 && value.shape[0].constant > 0 && value.shape[1].constant > 0), value.name, "must be a table [N, K]");
    int symbolic = 0;
    for (int d = 0; d < value.rank; ++d) {
      const Linear& size = value.shape[static_cast<size_t>(d)];
      for (const int64_t factor : {size.t, size.b, size.l}) need(factor >= 0 && factor < kMaxSize, value.name, "has a size that is none");
      need(size.constant >= 0 && size.constant < kMaxFixed, value.name, "has a size that is none");
      need(size.fixed() || !is_bound(value.kind), value.name, "must have fixed sizes");
      symbolic += !size.fixed();
    }
    need(symbolic < 2, value.name, "has more than one symbolic axis");
    const Linear& last = value.shape[static_cast<size_t>(value.rank - 1)];
    need(!is_quantised(value.dtype) || (last.fixed() && last.constant % info(value.dtype).block == 0), value.name, "has rows that are not whole blocks");
    bytes_of_value(value);
    if (value.kind == ValueKind::input) check_input(value);
    if (value.kind == ValueKind::input && value.name == "pages") limits_.pages = value.shape[1].constant;
  }

  static bool is_bound(ValueKind kind) { return kind == ValueKind::weight || kind == ValueKind::table || is_state(kind); }

  void check_instruction(const Instruction& instruction, int index) {
    const Rule* rule = find_rule(instruction.op);
    const std::string where = std::to_string(index) + " " + instruction.op;
    if (!rule) fail(ErrorKind::unsupported, "program " + program_.name, where + " is not an op that bundles have");
    for (const int in : instruction.in) need(in < 0 || written_[static_cast<size_t>(in)], where, "reads a value before it is written");
    for (const int out : instruction.out) need(out >= 0, where, "has a result without a name");
    const std::vector<Spec> results = results_of(*rule, program_, instruction);
    need(results.size() == instruction.out.size(), where, "has another number of results");
    for (size_t i = 0; i < results.size(); ++i) {
      const auto out = static_cast<size_t>(instruction.out[i]);
      need(!written_[out], where, "writes a value twice, or one that cannot be written");
      written_[out] = true;
      if (rule->op != "reshape") need(spec_of(program_.values[out]) == results[i], where, "gives another shape or type than " + program_.values[out].name + " has");
    }
    if (rule->op == "reshape") check_reshape(instruction, where);
    if (rule->op == "embedding") {
      const std::string& index_name = program_.values[static_cast<size_t>(instruction.in[0])].name;
      int64_t& limit = index_name == "ids" ? limits_.ids : index_name == "types" ? limits_.types : limits_.positions;
      limit = std::min(limit, program_.values[static_cast<size_t>(instruction.in[1])].shape[0].constant);
    }
    if (rule->op.starts_with("attention") && !rule->op.starts_with("attention_paged")) note_buckets(instruction, rule->op == "attention" ? 5 : 4);
  }

  void check_reshape(const Instruction& instruction, std::string_view where) const {
    const Value &from = program_.values[static_cast<size_t>(instruction.in[0])], &to = program_.values[static_cast<size_t>(instruction.out[0])];
    need(from.kind == ValueKind::buffer && to.kind == ValueKind::buffer, where, "reshapes what is not a buffer");
    need(from.dtype == to.dtype && same(bytes_of_value(from), bytes_of_value(to)), where, "must have as many elements as before");
  }

  // The numbers in `buckets` are rows of the table of biases.
  void note_buckets(const Instruction& instruction, size_t bias) {
    if (instruction.in[bias] < 0) return;
    int64_t& limit = limits_.buckets[static_cast<size_t>(instruction.in[bias + 1])];
    const int64_t rows = program_.values[static_cast<size_t>(instruction.in[bias])].shape[0].constant;
    limit = limit ? std::min(limit, rows) : rows;
  }

  // Buffers and their reshapes share memory, from the first write to the last read.
  struct Life {
    int root, start, end;
  };

  void check_slots() const {
    std::vector<Life> lives;
    std::vector<int> life_of(program_.values.size(), -1);
    for (int i = 0; i < static_cast<int>(program_.body.size()); ++i) {
      const Instruction& instruction = program_.body[static_cast<size_t>(i)];
      for (const int in : instruction.in)
        if (in >= 0 && life_of[static_cast<size_t>(in)] >= 0) lives[static_cast<size_t>(life_of[static_cast<size_t>(in)])].end = i;
      for (const int out : instruction.out) {
        if (program_.values[static_cast<size_t>(out)].kind != ValueKind::buffer) continue;
        int& own = life_of[static_cast<size_t>(out)];
        if (instruction.op == "reshape") own = life_of[static_cast<size_t>(instruction.in[0])];
        else own = static_cast<int>(lives.size()), lives.push_back({out, i, i});
      }
    }
    std::vector<int> last(program_.slots.size(), -1);
    for (const Linear& slot : program_.slots)
      for (const int64_t part : {slot.t, slot.b, slot.l, slot.constant}) need(part >= 0, "a slot", "has a size that is none");
    for (size_t i = 0; i < program_.values.size(); ++i) {
      const Value& value = program_.values[i];
      if (value.kind != ValueKind::buffer) continue;
      const Linear &room = program_.slots[static_cast<size_t>(value.slot)], bytes = bytes_of_value(value);
      need(room.t >= bytes.t && room.b >= bytes.b && room.l >= bytes.l && room.constant >= bytes.constant, value.name, "does not fit its slot");
      need(value.slot == program_.values[static_cast<size_t>(lives[static_cast<size_t>(life_of[i])].root)].slot, value.name, "is a reshape outside its slot");
    }
    for (int i = 0; i < static_cast<int>(lives.size()); ++i) {  // in the order of their starts
      const Life& life = lives[static_cast<size_t>(i)];
      int& before = last[static_cast<size_t>(program_.values[static_cast<size_t>(life.root)].slot)];
      if (before >= 0) {
        const Life& earlier = lives[static_cast<size_t>(before)];
        const bool apart = earlier.end < life.start || (earlier.end == life.start && life.start > earlier.start && may_overwrite(life, before, life_of));
        need(apart, program_.values[static_cast<size_t>(life.root)].name, "shares its slot with a buffer that is still read");
      }
      before = i;
    }
  }

  // Whether the result that `life` begins with may lie in the memory of the life `before`, which its instruction is the last to read.
  bool may_overwrite(const Life& life, int before, const std::vector<int>& life_of) const {
    const Instruction& instruction = program_.body[static_cast<size_t>(life.start)];
    if (instruction.out.empty() || instruction.out[0] != life.root) return false;
    const std::string_view allowed = find_rule(instruction.op)->in_place;
    bool read = false;
    for (size_t i = 0; i < instruction.in.size(); ++i) {
      const int in = instruction.in[i];
      if (in < 0 || life_of[static_cast<size_t>(in)] != before) continue;
      read = true;
      const bool fits = allowed.find(static_cast<char>('0' + i)) != std::string_view::npos &&
                        spec_of(program_.values[static_cast<size_t>(in)]) == spec_of(program_.values[static_cast<size_t>(life.root)]);
      if (!fits) return false;
    }
    return read;
  }

  // A product says how its weight lies in memory. Look-ups read any form but split and int8; all else needs rows.
  void find_forms() {
    std::vector<int> wanted(program_.values.size(), -1);
    const auto want = [&](int index, Form form) {
      if (index < 0) return;
      int& own = wanted[static_cast<size_t>(index)];
      need(own < 0 || own == static_cast<int>(form), program_.values[static_cast<size_t>(index)].name, "is read in two forms");
      own = static_cast<int>(form);
    };
    for (const Instruction& instruction : program_.body) {
      const auto flag = [&](std::string_view name) { return std::any_of(instruction.attrs.begin(), instruction.attrs.end(), [&](const NamedNumber& attr) { return attr.name == name && attr.value != 0; }); };
      if (instruction.op == "matmul" || instruction.op == "matmul_q") {
        const bool panels = has_panels(program_.values[static_cast<size_t>(instruction.in[1])].dtype);
        want(instruction.in[1], panels ? Form::panels : Form::rows);
      }
      if (instruction.op == "matmul_half") want(instruction.in[1], Form::halves);
      if (instruction.op == "matmul_bf16") want(instruction.in[1], flag("split") ? Form::split : Form::pairs);
      if (instruction.op == "matmul_i8") want(instruction.in[2], flag("equalised") ? Form::equalised : Form::quads), want(instruction.in[4], Form::equalised);
      if (instruction.op == "quantise_tokens") want(instruction.in[1], Form::equalised);
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const Value& value = program_.values[i];
      if (value.kind != ValueKind::weight) continue;
      limits_.forms[i] = value.rank == 1 ? Form::vector : wanted[i] < 0 ? Form::rows : static_cast<Form>(wanted[i]);
      need(value.rank > 1 || (value.dtype == DType::f32 && wanted[i] < 0), value.name, "is a vector, which must be f32");
    }
    for (const Instruction& instruction : program_.body) check_readers(instruction);
  }

  void check_readers(const Instruction& instruction) const {
    const bool product = instruction.op.starts_with("matmul"), int8 = instruction.op == "matmul_i8";
    for (size_t i = 0; i < instruction.in.size(); ++i) {
      const int in = instruction.in[i];
      if (in < 0 || program_.values[static_cast<size_t>(in)].kind != ValueKind::weight) continue;
      const Form form = limits_.forms[static_cast<size_t>(in)];
      if (form == Form::vector || form == Form::rows) continue;
      const bool own = (product && i == (int8 ? 2u : 1u)) || (int8 && i == 4) || instruction.op == "quantise_tokens";
      const bool looked_up = instruction.op == "embedding" && (form == Form::panels || form == Form::halves || form == Form::pairs);
      need(own || looked_up, program_.values[static_cast<size_t>(in)].name, "is packed for a product, and read by " + instruction.op + " too");
    }
  }

  const Program& program_;
  std::vector<bool> written_;
  Limits limits_;
};

}  // namespace

Limits verify(const Program& program) { return Checker(program).check(); }

}  // namespace weft::bundle
