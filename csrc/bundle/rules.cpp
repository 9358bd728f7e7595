#include "bundle/rules.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/words.h"

namespace weft::bundle {

bool same(const Linear& a, const Linear& b) { return a.t == b.t && a.b == b.b && a.l == b.l && a.constant == b.constant; }

bool Spec::operator==(const Spec& other) const {
  return dtype == other.dtype && std::equal(shape.begin(), shape.end(), other.shape.begin(), other.shape.end(), same);
}

Spec spec_of(const Value& value) { return {value.dtype, {value.shape.begin(), value.shape.begin() + value.rank}}; }

Site::Site(const Program& program, const Instruction& instruction) : program_(program), instruction_(instruction) {
  for (const int index : instruction.in) {
    given_.push_back(index < 0 ? nullptr : &program.values[static_cast<size_t>(index)]);
    specs_.push_back(given_.back() ? spec_of(*given_.back()) : Spec{DType::f32, {}});
  }
}

double Site::number(std::string_view name) const {
  for (const NamedNumber& attr : instruction_.attrs)
    if (attr.name == name) return attr.value;
  need(false, "the attribute " + std::string(name) + " is missing");
  return 0;
}

void Site::need(bool condition, std::string_view what) const {
  if (condition) return;
  const std::string out = instruction_.out.empty() ? "" : " of " + program_.values[static_cast<size_t>(instruction_.out[0])].name;
  fail(ErrorKind::format, "program " + program_.name, instruction_.op + out + ": " + std::string(what));
}

namespace {

using Specs = std::vector<Spec>;

constexpr int64_t kMaxHead = 512;    // channels of a head: what the scratch memory of every attention has room for
constexpr int64_t kMaxHeads = 4096;  // of queries
constexpr int64_t kHalfHead = 128, kBiases = 16384;                        // weft/ops/attention.py
constexpr int64_t kBf16Step = 32, kBf16Depth = 1 << 14, kHalfDepth = 1 << 15;  // weft/ops/matmul.py
constexpr int64_t kHadamard = 1 << 18;  // weft/ops/hadamard.py
constexpr int64_t kI8Step = 64, kI8Depth = 8192, kI8Columns = 3072;        // weft/ops/quant.py

const Linear kT{1, 0, 0, 0}, kL{0, 0, 1, 0};
Linear constant(int64_t size) { return {0, 0, 0, size}; }

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }
bool is_vector(const Spec& spec, const Linear& size) { return spec.dtype == DType::f32 && spec.rank() == 1 && same(spec.shape[0], size); }

Spec with_last(Spec spec, const Linear& last, DType dtype) {
  spec.shape.back() = last;
  spec.dtype = dtype;
  return spec;
}

Spec typed(Spec spec, DType dtype) {
  spec.dtype = dtype;
  return spec;
}

Linear last_of(const Site& site, const Spec& spec) {
  site.need(spec.rank() >= 1, "an operand must have an axis");
  return spec.shape.back();
}

// The fixed size of a last axis.
int64_t width_of(const Site& site, const Spec& spec) {
  const Linear last = last_of(site, spec);
  site.need(last.fixed(), "the last axis must have a fixed size");
  return last.constant;
}

Specs as_first(const Site& site) { return {site.at(0)}; }

Specs as_both(const Site& site) {
  site.need(site.at(0) == site.at(1), "both operands must have one shape");
  return {site.at(0)};
}

Specs broadcast(const Site& site) {
  const Spec &x = site.at(0), &y = site.at(1);
  const Linear last = last_of(site, x);
  site.need(y == x || is_vector(y, last), "y must have the shape of x, or of one row of it");
  return {x};
}

Specs softcap(const Site& site) {
  site.need(site.number("cap") > 0, "cap must be above zero");
  return {site.at(0)};
}

Specs gated_clamped(const Site& site) {
  site.need(site.number("limit") > 0, "limit must be above zero");
  return as_both(site);
}

// The operands from `first` on are vectors as long as the rows of x.
void check_norm(const Site& site, size_t first, size_t count) {
  const Linear last = last_of(site, site.at(0));
  for (size_t i = first; i < first + count; ++i) site.need(is_vector(site.at(i), last), "a norm's vectors must be f32, as long as its rows");
}

Specs norm(const Site& site) { return check_norm(site, 1, site.operand(1) ? 1 : 0), as_first(site); }
Specs layer_norm(const Site& site) { return check_norm(site, 1, 2), as_first(site); }
Specs add_rms_norm(const Site& site) { return as_both(site), check_norm(site, 2, 1), Specs{site.at(0), site.at(0)}; }
Specs add_layer_norm(const Site& site) { return as_both(site), check_norm(site, 2, 2), as_first(site); }
Specs last_axis(const Site& site) { return last_of(site, site.at(0)), as_first(site); }

Specs hadamard(const Site& site) {
  const int64_t width = width_of(site, site.at(0)), size = site.integer("size"), stride = site.integer("stride");
  site.need(size > 0 && (size & (size - 1)) == 0 && stride > 0, "size must be a power of two, stride above zero");
  site.need(width > 0 && width <= kHadamard && size <= width && stride <= width && width % (size * stride) == 0, "rows must be whole parts, at most 262144 columns");
  const int64_t parts = width / (size * stride);
  const Spec* factor = site.operand(1);
  site.need(factor ? is_vector(*factor, constant(parts * parts)) : parts == 1, "the factor must be f32, one number for each pair of parts");
  return as_first(site);
}

Spec in_blocks(const Site& site, const Spec& x) {
  const int64_t block = site.integer("block");
  site.need(block == 32 || block == 256, "block must be 32 or 256");
  site.need(width_of(site, x) % block == 0, "rows must be whole blocks");
  return typed(x, block == 32 ? DType::a8_32 : DType::a8_256);
}

Specs quantise_rows(const Site& site) { return {in_blocks(site, site.at(0))}; }
Specs rms_norm_a8(const Site& site) { return check_norm(site, 1, 1), quantise_rows(site); }
Specs add_rms_norm_a8(const Site& site) { return as_both(site), check_norm(site, 2, 1), Specs{site.at(0), in_blocks(site, site.at(0))}; }
Specs gated_a8(const Site& site) { return as_both(site), quantise_rows(site); }

// x [..., K] times weight [N, K], plus bias [N].
Spec product(const Site& site, size_t weight, size_t bias) {
  const Spec &x = site.at(0), &w = site.at(weight);
  const int64_t depth = width_of(site, x);
  site.need(w.rank() == 2 && w.shape[1].constant == depth, "the weight must be [N, " + std::to_string(depth) + "]");
  if (const Spec* b = site.operand(bias)) site.need(is_vector(*b, w.shape[0]), "the bias must be f32, one number for each row of the weight");
  return with_last(x, w.shape[0], DType::f32);
}

void no_stack(const Site& site) { site.need(!site.operand(3), "products with stacks of experts are not in bundles"); }

Specs matmul(const Site& site) { return no_stack(site), Specs{product(site, 1, 2)}; }

Specs matmul_half(const Site& site) {
  site.need(site.at(1).dtype == DType::f16, "the weight must be f16");
  site.need(width_of(site, site.at(0)) <= kHalfDepth, "rows are too long");
  return matmul(site);
}

Specs matmul_q(const Site& site) {
  int64_t block = 0;
  switch (site.at(1).dtype) {
    case DType::q4_0: case DType::q4_1: case DType::q5_0: case DType::q5_1: case DType::q8_0: case DType::iq4_nl:
    case DType::mxfp4: case DType::q4_z: block = 32; break;
    case DType::q2_k: case DType::q3_k: case DType::q4_k: case DType::q5_k: case DType::q6_k: case DType::iq4_xs:
    case DType::iq3_s: case DType::iq3_xxs: case DType::iq2_s: case DType::iq2_xs: case DType::iq2_xxs: case DType::iq1_m:
    case DType::iq1_s: case DType::tq1_0: case DType::tq2_0: block = 256; break;
    default: site.need(false, "the weight's type has no int8 kernel");
  }
  site.need(info(site.at(0).dtype).block == block, "x has blocks of another length than the weight needs");
  return matmul(site);
}

Specs round_rows(const Site& site) {
  const int64_t width = width_of(site, site.at(0));
  return {with_last(site.at(0), constant(site.flag("split") ? 2 * width : width), DType::bf16)};
}

Specs matmul_bf16(const Site& site) {
  const int64_t parts = site.flag("split") ? 2 : 1, depth = width_of(site, site.at(0));
  site.need(site.at(0).dtype == DType::bf16 && site.at(1).dtype == DType::bf16, "x and the weight must be bf16");
  site.need(depth > 0 && depth % (kBf16Step * parts) == 0 && depth <= kBf16Depth, "rows must be a multiple of 32, at most 16384");
  no_stack(site);
  const Spec result = product(site, 1, 2);
  if (!site.flag("rounded")) return {result};
  return {with_last(result, constant(result.shape.back().constant * parts), DType::bf16)};
}

void check_i8(const Site& site, const Spec& x, const Spec* reader) {
  const int64_t width = width_of(site, x);
  site.need(width > 0 && width % kI8Step == 0 && width <= kI8Depth, "rows must be a multiple of 64, at most 8192");
  if (reader) site.need(reader->rank() == 2 && reader->shape[1].constant == width && is_float(reader->dtype), "the reader must be floats [N, " + std::to_string(width) + "]");
}

Specs quantise_tokens(const Site& site) {
  check_i8(site, site.at(0), site.operand(1));
  return {typed(site.at(0), DType::i8), with_last(site.at(0), constant(3), DType::f32)};
}

Specs matmul_i8(const Site& site) {
  const Spec& x = site.at(0);
  site.need(x.dtype == DType::i8 && is_float(site.at(2).dtype), "x must be i8, the weight floats");
  check_i8(site, x, nullptr);
  site.need(site.at(1) == with_last(x, constant(3), DType::f32), "headers must be 3 numbers for every row of x");
  const Spec result = product(site, 2, 3);
  const bool quantised = site.flag("quantised");
  site.need(quantised || !site.operand(4), "a reader needs quantised");
  if (!quantised) return {result};
  check_i8(site, result, site.operand(4));
  site.need(result.shape.back().constant <= kI8Columns && x.shape.back().constant <= kI8Columns, "quantised needs shorter rows");
  return {typed(result, DType::i8), with_last(result, constant(3), DType::f32)};
}

Specs embedding(const Site& site) {
  site.need(site.at(1).rank() == 2, "the table must be [V, D]");
  return {Spec{DType::f32, {site.at(0).shape[0], site.at(1).shape[1]}}};
}

Specs take_rows(const Site& site) {
  const Spec& x = site.at(0);
  site.need(x.rank() == 2 && same(x.shape[0], kT), "x must be [T, D]");
  return {Spec{x.dtype, {kL, x.shape[1]}}};
}

Specs pool(const Site& site) {
  const Spec& x = site.at(0);
  site.need(x.rank() == 2 && same(x.shape[0], site.value(1)->name == "spans" ? kL : kT), "x must be [T, D], or [L, D] of spans");
  return {Spec{x.dtype, {Linear{0, 1, 0, 0}, x.shape[1]}}};
}

// [T, heads, channels] of fixed heads and channels.
void check_tokens(const Site& site, const Spec& x) {
  site.need(x.rank() == 3 && same(x.shape[0], kT) && x.shape[1].fixed() && x.shape[2].fixed(), "an operand must be [T, H, D]");
  site.need(x.shape[1].constant > 0 && x.shape[1].constant <= kMaxHeads && x.shape[2].constant > 0 && x.shape[2].constant <= kMaxHead,
            "there must be 1 to 4096 heads of 1 to 512 channels");
}

void check_heads(const Site& site, const Spec& q, int64_t heads, int64_t dim) {
  check_tokens(site, q);
  site.need(q.shape[2].constant == dim && heads > 0 && q.shape[1].constant % heads == 0, "q must have the channels of the keys, and a multiple of their heads");
}

void check_turned(const Site& site, const Spec& x, const Spec& table) {
  check_tokens(site, x);
  site.need(table.rank() == 2 && same(table.shape[0], kT) && table.shape[1].constant % 2 == 0 && table.shape[1].constant <= x.shape[2].constant,
            "the table must be [T, 2R], not wider than a head");
}

Specs rope(const Site& site) {
  check_tokens(site, site.at(0));
  const Spec& turns = site.at(2);
  site.need(turns.rank() == 1 && is_vector(turns, turns.shape[0]) && 2 * turns.shape[0].constant <= site.at(0).shape[2].constant, "inv_freq must be f32[R], 2R not wider than a head");
  return as_first(site);
}

Specs rope_table(const Site& site) {
  const Spec& turns = site.at(1);
  site.need(turns.rank() == 1 && is_vector(turns, turns.shape[0]) && turns.shape[0].constant <= kMaxHead, "inv_freq must be f32[R]");
  return {Spec{DType::f32, {kT, constant(2 * turns.shape[0].constant)}}};
}

Specs rope_turn(const Site& site) { return check_turned(site, site.at(0), site.at(1)), as_first(site); }

// `next`: the operand after the pages.
void check_written(const Site& site, const Spec& k, const Spec& v, const Spec& state, size_t next) {
  check_tokens(site, k);
  const Spec *centre = site.operand(next), *steady = site.operand(next + 1);
  site.need(!centre == !steady && (!centre || (is_vector(*centre, constant(k.shape[1].constant * k.shape[2].constant)) && is_vector(*steady, k.shape[2]))),
            "centre must be f32[G D] beside steady f32[D]");
  site.need(k == v && state.shape[0].constant == k.shape[1].constant && state.shape[1].constant == k.shape[2].constant, "k and v must be [T, G, D] of the state [G, D]");
}

Specs kv_write(const Site& site) { return check_written(site, site.at(0), site.at(1), site.at(2), 6), Specs{}; }

Specs rope_write(const Site& site) {
  check_written(site, site.at(1), site.at(2), site.at(4), 8);
  check_turned(site, site.at(0), site.at(3));
  check_heads(site, site.at(0), site.at(1).shape[1].constant, site.at(1).shape[2].constant);
  return as_first(site);
}

void check_window(const Site& site) { site.need(site.integer("window") >= 0 && site.number("softcap") >= 0, "window and softcap must not be negative"); }

void check_sinks(const Site& site, size_t index) {
  if (const Spec* sinks = site.operand(index)) site.need(is_vector(*sinks, site.at(0).shape[1]), "sinks must be one number for each head");
}

Specs attention_paged(const Site& site) {
  check_heads(site, site.at(0), site.at(1).shape[0].constant, site.at(1).shape[1].constant);
  check_window(site);
  check_sinks(site, 5);
  return as_first(site);
}

void check_half_head(const Site& site) { site.need(site.at(0).shape[2].constant <= kHalfHead, "heads must have at most 128 channels"); }

Specs attention_paged_bf16(const Site& site) { return attention_paged(site), check_half_head(site), as_first(site); }

// Queries, keys and values of whole texts, and the biases of distances at operand `bias`.
void check_whole(const Site& site, size_t bias) {
  const Spec &q = site.at(0), &k = site.at(1);
  check_tokens(site, k);
  site.need(k == site.at(2), "k and v must have one shape");
  check_heads(site, q, k.shape[1].constant, k.shape[2].constant);
  const Spec *table = site.operand(bias), *buckets = site.operand(bias + 1);
  site.need(!table == !buckets, "bias and buckets come together");
  if (!table) return;
  site.need(table->rank() == 2 && same(table->shape[1], q.shape[1]) && is_float(table->dtype) && table->shape[0].constant > 0, "bias must be floats [K, H]");
  const int64_t distances = buckets->rank() == 1 ? buckets->shape[0].constant : 0;
  site.need(buckets->rank() == 1 && is_vector(*buckets, buckets->shape[0]) && distances % 2 == 1 && distances <= kBiases, "buckets must be f32[2R+1]");
  site.need(q.shape[1].constant / k.shape[1].constant * (distances + 31) <= kBiases, "buckets are too many for the heads of a key head");
}

Specs attention(const Site& site) { return check_whole(site, 5), check_window(site), check_sinks(site, 4), as_first(site); }

Specs attention_half(const Site& site) { return check_whole(site, 4), check_half_head(site), as_first(site); }

Specs attention_bf16(const Site& site) {
  check_whole(site, 4);
  check_half_head(site);
  site.need(site.at(0).dtype == site.at(1).dtype, "q and k must have one type");
  return {typed(site.at(0), site.flag("rounded") ? DType::bf16 : DType::f32)};
}

// y and x are rows of tokens, or with `rows` those that are asked for: the kernel looks up which token each of them is.
Specs lora(const Site& site) {
  const Spec &y = site.at(0), &x = site.at(1), &table = site.at(2);
  site.need(y.rank() == 2 && x.rank() == 2 && same(y.shape[0], x.shape[0]) && same(y.shape[0], site.operand(5) ? kL : kT), "y and x must be [T, N] and [T, K], or [L, N] and [L, K] of rows");
  site.need(table.rank() == 2 && table.shape[0].constant == width_of(site, y) && table.shape[1].constant == width_of(site, x), "the table must be [N, K]");
  return as_first(site);
}

Specs lora_embedding(const Site& site) {
  const Spec &y = site.at(0), &table = site.at(2);
  site.need(y.rank() == 2 && same(y.shape[0], kT) && table.rank() == 2 && table.shape[0].constant == width_of(site, y), "y must be [T, D] of a table [D, V]");
  return as_first(site);
}

const Rule kRules[] = {
    {"activate", "a", "kind:K", "0", as_first},
    {"add", "aa", "", "01", broadcast},
    {"add_layer_norm", "aaww", "eps:f", "01", add_layer_norm},
    {"add_rms_norm", "aaw", "eps:f", "01", add_rms_norm},
    {"add_rms_norm_a8", "aaw", "eps:f block:i", "01", add_rms_norm_a8},
    {"attention", "aaaSw?w?w?", "causal:b scale:f window:i softcap:f", "", attention},
    {"attention_bf16", "vvvSw?w?", "scale:f rounded:b", "", attention_bf16},
    {"attention_half", "aaaSw?w?", "scale:f", "", attention_half},
    {"attention_paged", "akPSGw?i?", "scale:f window:i softcap:f", "", attention_paged},
    {"attention_paged_bf16", "akPSGw?i?", "scale:f window:i softcap:f", "", attention_paged_bf16},
    {"embedding", "Iw", "", "", embedding},
    {"gated", "aa", "kind:K", "01", as_both},
    {"gated_a8", "aa", "kind:K block:i", "", gated_a8},
    {"gated_clamped", "aa", "limit:f alpha:f", "01", gated_clamped},
    {"hadamard", "aw?", "size:i stride:i inverse:b", "0", hadamard},
    {"kv_write", "aakPSGw?w?", "", "", kv_write},
    {"l2_normalise", "a", "eps:f", "0", last_axis},
    {"layer_norm", "aww", "eps:f", "0", layer_norm},
    {"lora", "aatSDR?i?", "", "0", lora},
    {"lora_embedding", "aItSD", "", "0", lora_embedding},
    {"matmul", "aww?i?", "activation:A", "", matmul},
    {"matmul_bf16", "rww?i?", "activation:A rounded:b split:b", "", matmul_bf16},
    {"matmul_half", "aww?i?", "activation:A", "", matmul_half},
    {"matmul_i8", "raww?w?", "activation:A equalised:b quantised:b", "", matmul_i8},
    {"matmul_q", "rww?i?", "activation:A", "", matmul_q},
    {"mul", "aa", "", "01", broadcast},
    {"pool", "aQ", "mode:M", "", pool},
    {"quantise_rows", "a", "block:i", "", quantise_rows},
    {"quantise_tokens", "aw?", "", "", quantise_tokens},
    {"reshape", "v", "", "", as_first},  // its result is checked apart
    {"rms_norm", "aw", "eps:f", "0", norm},
    {"rms_norm_a8", "aw", "eps:f block:i", "", rms_norm_a8},
    {"rope", "aPw", "interleaved:b scale:f", "0", rope},
    {"rope_table", "Pwi?", "scale:f", "", rope_table},
    {"rope_turn", "aa", "interleaved:b", "0", rope_turn},
    {"rope_write", "aaaakPSGw?w?", "interleaved:b", "0", rope_write},
    {"round_rows", "a", "split:b", "", round_rows},
    {"scale", "a", "by:f", "0", as_first},
    {"softcap", "a", "cap:f", "0", softcap},
    {"softmax", "a", "", "", last_axis},
    {"take_rows", "aR", "", "", take_rows},
};

bool takes(char role, const Value& value) {
  const bool array = value.kind != ValueKind::table && !is_state(value.kind), input = value.kind == ValueKind::input;
  const auto called = [&](auto... names) { return input && ((value.name == names) || ...); };
  const DType type = value.dtype;
  switch (role) {
    case 'a': return array && type == DType::f32;
    case 'v': return array && (type == DType::f32 || type == DType::bf16);
    case 'r': return array && value.kind != ValueKind::weight && (type == DType::a8_32 || type == DType::a8_256 || type == DType::bf16 || type == DType::i8);
    case 'w': return value.kind == ValueKind::weight;
    case 'k': return value.kind == ValueKind::kv;
    case 't': return value.kind == ValueKind::table;
    case 'D': return called("adapters");
    case 'P': return called("positions");
    case 'S': return called("segments");
    case 'R': return called("rows");
    case 'G': return called("pages");
    case 'I': return called("ids", "positions", "types");
    case 'Q': return called("segments", "spans");
    default: return false;  // i: what programs in bundles do not have: computed indices, positions for pictures
  }
}

bool allowed(char kind, double value) {
  const bool whole = std::isfinite(value) && std::trunc(value) == value && std::abs(value) < 9007199254740992.0;
  const auto below = [&](double least, size_t end) { return whole && value >= least && value < static_cast<double>(end); };
  switch (kind) {
    case 'f': return std::isfinite(value);
    case 'i': return whole;
    case 'b': return below(0, 2);
    case 'A': return below(0, std::size(kActivations));
    case 'K': return below(1, std::size(kActivations));
    default: return below(0, std::size(kPoolModes));
  }
}

void check_attrs(const Rule& rule, const Instruction& instruction, const Site& site) {
  size_t count = 0;
  for (std::string_view rest = rule.attrs; !rest.empty(); ++count) {
    const std::string_view one = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    const std::string_view name = one.substr(0, one.find(':'));
    site.need(allowed(one.back(), site.number(name)), "the attribute " + std::string(name) + " has a value that it cannot have");
  }
  site.need(count == instruction.attrs.size(), "there are attributes that the op does not have");
}

}  // namespace

const Rule* find_rule(std::string_view op) {
  const Rule* found = std::lower_bound(std::begin(kRules), std::end(kRules), op, [](const Rule& rule, std::string_view name) { return rule.op < name; });
  return found != std::end(kRules) && found->op == op ? found : nullptr;
}

std::vector<Spec> results_of(const Rule& rule, const Program& program, const Instruction& instruction) {
  const Site site(program, instruction);
  size_t index = 0;
  for (size_t i = 0; i < rule.operands.size(); ++i, ++index) {
    const char role = rule.operands[i];
    const bool optional = i + 1 < rule.operands.size() && rule.operands[i + 1] == '?';
    i += optional;
    if (index >= instruction.in.size() && optional) continue;  // a bundle of an older version, whose op had fewer
    site.need(index < instruction.in.size(), "operands are missing");
    const Value* value = site.value(index);
    site.need(value ? takes(role, *value) : optional, "operand " + std::to_string(index) + (value ? ", " + value->name + ", is not of the kind that the op takes" : " is missing"));
  }
  site.need(index >= instruction.in.size(), "there are more operands than the op takes");
  check_attrs(rule, instruction, site);
  return rule.results(site);
}

}  // namespace weft::bundle
