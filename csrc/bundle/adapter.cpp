#include "bundle/adapter.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "bundle/sha256.h"
#include "core/error.h"
#include "core/half.h"
#include "core/json.h"
#include "pack/laying.h"

namespace weft::bundle {

namespace {

constexpr int64_t kVersion = 1;
constexpr uint64_t kMaxHeader = uint64_t{64} << 20;
constexpr int64_t kMaxSize = int64_t{1} << 40;
constexpr size_t kAligned = 64;  // where a weight begins
constexpr char kWhere[] = "adapter", kMetadata[] = "__metadata__";

[[noreturn]] void malformed(const std::string& what) { fail(ErrorKind::format, kWhere, what); }

DType type_of(std::string_view name, std::string_view tensor) {
  if (name == "F32") return DType::f32;
  if (name == "F16") return DType::f16;
  if (name == "BF16") return DType::bf16;
  malformed(std::string(tensor) + " is of a type that adapters do not have: " + std::string(name));
}

struct Tensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

bool all_finite(const Tensor& tensor) {
  // The exponent of what is not finite has all of its bits.
  const auto search = [&](auto exponent) {
    using Bits = decltype(exponent);
    for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(Bits)) {
      Bits bits;
      std::memcpy(&bits, tensor.bytes.data() + at, sizeof bits);
      if ((bits & exponent) == exponent) return false;
    }
    return true;
  };
  if (tensor.dtype == DType::f32) return search(uint32_t{0x7F800000});
  return search(static_cast<uint16_t>(tensor.dtype == DType::f16 ? 0x7C00 : 0x7F80));
}

// One tensor of the header; `data` is all that follows it.
Tensor tensor_of(std::string_view name, json::Value entry, std::span<const std::byte> data) {
  Tensor tensor{type_of(entry.at("dtype").string(), name), {}, {}};
  int64_t bytes = info(tensor.dtype).bytes;
  for (const json::Value size : entry.at("shape").items()) {
    tensor.shape.push_back(size.integer());
    if (tensor.shape.back() < 1 || tensor.shape.size() > 2 || __builtin_mul_overflow(bytes, tensor.shape.back(), &bytes) || bytes > kMaxSize)
      malformed(std::string(name) + " has a shape that no part of an adapter has");
  }
  const json::Value offsets = entry.at("data_offsets");
  int64_t range[2] = {-1, -1};
  if (offsets.size() == 2) {
    size_t i = 0;
    for (const json::Value place : offsets.items()) range[i++] = place.integer();
  }
  const auto size = static_cast<int64_t>(data.size());
  if (range[0] < 0 || range[1] < range[0] || range[1] > size || range[1] - range[0] != bytes) malformed(std::string(name) + " lies outside the file, or has another size than its shape");
  if (tensor.shape.empty() || range[0] % info(tensor.dtype).bytes) malformed(std::string(name) + " has no axis, or begins between two numbers");
  tensor.bytes = data.subspan(static_cast<size_t>(range[0]), static_cast<size_t>(bytes));
  if (!all_finite(tensor)) malformed(std::string(name) + " holds numbers that are not finite");
  return tensor;
}

// The weights of an adapter, in one memory that has their size: a host may load hundreds of small adapters.
class Laying {
 public:
  Laying() : panels_(packer_named("panels")) {}

  void add(Adapter::Part& part, std::string_view what, std::string_view name, const Tensor& tensor) {
    const bool vector = what == "scale" || what == "gain" || what == "shift";
    std::shared_ptr<const Weight>* place = what == "down" ? &part.down : what == "up" ? &part.up : what == "scale" ? &part.scale : what == "gain" ? &part.gain : what == "shift" ? &part.shift : nullptr;
    if (!place) malformed(std::string(name) + " is not part of an adapter");
    if (tensor.shape.size() != (vector ? 1 : 2) || (vector && tensor.dtype != DType::f32)) malformed(std::string(name) + (vector ? " must be a vector of f32" : " must be a matrix"));
    auto weight = std::make_shared<Weight>(vector ? vector_of(tensor) : packed_like(panels_, tensor.dtype, tensor.shape[0], tensor.shape[1]));
    size_t room = 0;
    if (__builtin_add_overflow(weight->bytes, kAligned - 1, &room) || __builtin_add_overflow(bytes_, room / kAligned * kAligned, &bytes_)) fail(ErrorKind::memory, kWhere, "its weights are larger than all memory");
    parts_.push_back({weight, tensor.bytes});
    *place = std::move(weight);
  }

  void finish() {
    const auto memory = std::make_shared<Memory>(bytes_);
    Packing packing(1);
    std::byte* out = memory->data();
    for (const auto& [weight, from] : parts_) {
      weight->data = out, weight->borrowed = memory;
      if (weight->layout == Layout::panels) packing.add({panels_, weight->dtype, from.data(), row_bytes(weight->dtype, weight->cols), nullptr, weight->rows, weight->cols, out});
      else std::memcpy(out, from.data(), from.size());
      out += (weight->bytes + kAligned - 1) / kAligned * kAligned;
    }
    packing.start();
    packing.finish();
  }

 private:
  static Weight vector_of(const Tensor& tensor) {
    Weight weight;
    weight.rows = 1, weight.cols = tensor.shape[0], weight.bytes = tensor.bytes.size();
    return weight;
  }

  struct Placed {
    std::shared_ptr<Weight> weight;
    std::span<const std::byte> from;
  };
  PackPart panels_;
  std::vector<Placed> parts_;
  size_t bytes_ = 0;
};

// What a host must know before the tensors are read.
void check_about(json::Value about, std::string_view base, std::span<const std::byte> data) {
  const std::string_view version = about.string_or("weft_adapter", "");
  if (version.empty()) fail(ErrorKind::format, kWhere, "this is not an adapter for bundles; write one with weft export MODEL --adapter FOLDER --alone");
  if (version != std::to_string(kVersion)) fail(ErrorKind::unsupported, kWhere, "version " + std::string(version) + " of adapters; this library reads version " + std::to_string(kVersion) + "; export it again");
  if (about.at("base").string() != base) fail(ErrorKind::input, kWhere, "this adapter is for another model: its base is " + std::string(about.at("base").string().substr(0, 12)) + "…, the bundle's " + std::string(base.substr(0, 12)) + "…; export it with the model of the bundle");
  if (about.at("sha256").string() != sha256(data)) malformed("the file is damaged: its sha-256 is not that of its header");
}

}  // namespace

Adapter read_adapter(std::span<const std::byte> file, std::string_view base) {
  uint64_t length = 0;
  if (file.size() >= sizeof length) std::memcpy(&length, file.data(), sizeof length);
  if (file.size() < sizeof length || length > kMaxHeader || length > file.size() - sizeof length) malformed("the file has no header of safetensors, or ends in it");
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + sizeof length, static_cast<size_t>(length));
  const json::Document header(text, kWhere);
  std::span<const std::byte> data = file.subspan(sizeof length + text.size());
  check_about(header.root().at(kMetadata), base, data);
  Memory aligned;  // packing reads numbers at their own alignment
  if (reinterpret_cast<size_t>(data.data()) % sizeof(float)) {
    aligned = Memory(data.size());
    std::memcpy(aligned.data(), data.data(), data.size());
    data = {aligned.data(), data.size()};
  }
  Adapter adapter;
  adapter.name = header.root().at(kMetadata).string_or("name", "");
  adapter.digest = header.root().at(kMetadata).at("sha256").string();
  Laying laying;
  size_t taken = 0;
  for (const auto& [name, entry] : header.root().members()) {
    if (name == kMetadata) continue;
    const size_t dot = name.rfind('.');
    const Tensor tensor = tensor_of(name, entry, data);
    taken += tensor.bytes.size();
    if (taken > data.size()) malformed("the tensors overlap");
    laying.add(adapter.parts[std::string(name.substr(0, dot))], dot == std::string_view::npos ? name : name.substr(dot + 1), name, tensor);
  }
  laying.finish();
  return adapter;
}

}  // namespace weft::bundle
