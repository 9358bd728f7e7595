// pack: bindings of weights as the kernels read them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/weight.h"
#include "pack/experts.h"
#include "pack/laying.h"
#include "pack/packing.h"
#include "pack/panels.h"
#include "pack/quads.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::shared_ptr<Weight> in_rows(const std::string& name, int64_t rows, int64_t cols, Bytes bytes) {
  auto weight = std::make_shared<Weight>();
  weight->dtype = dtype_named(name);
  check_weight_size(weight->dtype, rows, cols, bytes.size());
  weight->rows = rows;
  weight->cols = cols;
  weight->data = reinterpret_cast<const std::byte*>(bytes.data());
  weight->bytes = bytes.size();
  // the array keeps the mapping alive; released with the GIL held
  weight->borrowed = std::shared_ptr<void>(new Bytes(bytes), [](void* pointer) {
    nb::gil_scoped_acquire acquire;
    delete static_cast<Bytes*>(pointer);
  });
  return weight;
}

void check_order(const Order& order, int64_t rows) {
  if (static_cast<int64_t>(order.size()) != rows) fail(ErrorKind::input, "weight", "row_order must name every row");
  for (size_t i = 0; i < order.size(); ++i)
    if (order.data()[i] < 0 || order.data()[i] >= rows) fail(ErrorKind::input, "weight", "row_order names a row that does not exist");
}

std::vector<std::span<const std::byte>> spans_of(const std::vector<Bytes>& files) {
  std::vector<std::span<const std::byte>> spans;
  for (const Bytes& file : files) spans.push_back({reinterpret_cast<const std::byte*>(file.data()), file.size()});
  return spans;
}

// Objects that Python passes to a packing are kept alive until it is done.
class PackingOfArrays {
 public:
  PackingOfArrays(int threads, std::shared_ptr<Arena> arena, std::vector<Bytes> files)
      : arena_(std::move(arena)), files_(std::move(files)), packing_(threads, spans_of(files_)) {}

  // The weight of a matrix, packed once `finish` returns.
  std::shared_ptr<Weight> add(const std::string& layout, const std::string& dtype, int64_t rows, int64_t cols, Bytes bytes, std::optional<Order> order) {
    const DType stored = dtype_named(dtype);
    const PackPart pack = packer_named(layout);
    check_weight_size(stored, rows, cols, bytes.size());
    if (order) check_order(*order, rows);
    auto weight = std::make_shared<Weight>(packed_like(pack, stored, rows, cols));
    std::byte* out = allocate_weight(*weight, arena_.get());
    const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
    if (pack == &pack_quads) write_factors(stored, from, row_bytes(stored, cols), rows, cols, layout == "equalised", out);
    packing_.add({pack, stored, from, row_bytes(stored, cols),
                  order ? order->data() : nullptr, rows, cols, out});
    made_.push_back(weight);
    sources_.push_back(bytes);
    if (order) orders_.push_back(*order);
    return weight;
  }

  void start() { packing_.start(); }

  void finish() {
    {
      nb::gil_scoped_release release;
      packing_.finish();
    }
    made_.clear(), sources_.clear(), orders_.clear();
  }

 private:
  std::shared_ptr<Arena> arena_;
  std::vector<Bytes> files_, sources_;
  std::vector<Order> orders_;
  std::vector<std::shared_ptr<Weight>> made_;  // the memory that is written to
  Packing packing_;                            // last: destroyed first, so its team ends before the rest
};

// A vector as float32, whatever it is stored as; `plus_one` adds one to each value.
std::shared_ptr<Weight> widened(const std::string& dtype, int64_t count, Bytes bytes, std::optional<Order> order, bool plus_one, Arena* arena) {
  const DType stored = dtype_named(dtype);
  check_weight_size(stored, 1, count, bytes.size());
  if (order) check_order(*order, count);
  return widened_vector(stored, count, reinterpret_cast<const std::byte*>(bytes.data()), order ? order->data() : nullptr, plus_one, arena);
}

std::shared_ptr<Weight> vector(Floats values, Arena* arena) {
  auto weight = std::make_shared<Weight>();
  weight->rows = 1;
  weight->cols = static_cast<int64_t>(values.size());
  weight->bytes = values.size() * sizeof(float);
  if (weight->bytes) std::memcpy(allocate_weight(*weight, arena), values.data(), weight->bytes);
  return weight;
}

// Matrices of one shape, type and layout as the one weight that a product of groups of rows reads.
std::shared_ptr<Weight> stacked(const std::vector<std::shared_ptr<Weight>>& matrices) {
  struct Kept {
    std::vector<std::shared_ptr<Weight>> matrices;
    std::vector<const std::byte*> data;
  };
  if (matrices.empty()) fail(ErrorKind::input, "weight", "a stack has at least one matrix");
  const Weight& first = *matrices.front();
  auto kept = std::make_shared<Kept>(matrices);
  auto weight = std::make_shared<Weight>();
  weight->dtype = first.dtype, weight->layout = first.layout, weight->rows = first.rows, weight->cols = first.cols;
  for (const std::shared_ptr<Weight>& matrix : matrices) {
    if (matrix->stack || matrix->dtype != first.dtype || matrix->layout != first.layout || matrix->rows != first.rows || matrix->cols != first.cols)
      fail(ErrorKind::input, "weight", "the matrices of a stack must have one shape, type and layout");
    kept->data.push_back(matrix->data);
    weight->bytes += matrix->bytes;
  }
  weight->matrices = static_cast<int64_t>(matrices.size());
  weight->stack = kept->data.data();
  weight->borrowed = kept;
  return weight;
}

// The memory of experts, and the arrays that it reads.
struct BoundExperts {
  std::vector<Bytes> files, sources;
  std::vector<Order> orders;
  ExpertMemory memory;
  BoundExperts(size_t budget, std::vector<Bytes> mapped) : files(std::move(mapped)), memory(budget, spans_of(files)) {}
};

// A stack whose matrices, each rows x cols, are packed when a step needs them.
std::shared_ptr<Weight> add_experts(std::shared_ptr<BoundExperts> self, const std::string& layout, const std::string& dtype, int64_t rows, int64_t cols,
                                    const std::vector<Bytes>& matrices, const std::vector<std::optional<Order>>& orders) {
  const DType stored = dtype_named(dtype);
  const PackPart pack = packer_named(layout);
  if (matrices.empty() || matrices.size() != orders.size()) fail(ErrorKind::input, "weight", "a stack has at least one matrix, and an order of rows for each");
  if (pack == &pack_quads) fail(ErrorKind::unsupported, "weight", "a stack cannot have the layout " + layout);
  auto weight = std::make_shared<Weight>(packed_like(pack, stored, rows, cols));
  weight->matrices = static_cast<int64_t>(matrices.size());
  ExpertMemory::Stack stack{pack, stored, row_bytes(stored, cols), std::exchange(weight->bytes, 0), rows, cols, {}, {}};
  for (size_t i = 0; i < matrices.size(); ++i) {
    check_weight_size(stored, rows, cols, matrices[i].size());
    if (orders[i]) check_order(*orders[i], rows);
    stack.sources.push_back(reinterpret_cast<const std::byte*>(matrices[i].data()));
    stack.row_orders.push_back(orders[i] ? orders[i]->data() : nullptr);
    self->sources.push_back(matrices[i]);
    if (orders[i]) self->orders.push_back(*orders[i]);
  }
  {
    nb::gil_scoped_release release;  // a step may be running, which takes a while
    const ExpertMemory::Place place = self->memory.add(std::move(stack));
    weight->place = place.number, weight->stack = place.data;
  }
  weight->experts = &self->memory;
  weight->borrowed = std::shared_ptr<void>(new std::shared_ptr<BoundExperts>(self), [](void* pointer) {
    nb::gil_scoped_acquire acquire;  // the arrays are Python's
    delete static_cast<std::shared_ptr<BoundExperts>*>(pointer);
  });
  return weight;
}

nb::dict expert_counts(const BoundExperts& self) {
  const ExpertMemory::Counts counts = self.memory.counts();
  nb::dict found;
  found["hits"] = counts.hits;
  found["misses"] = counts.misses;
  found["resident"] = counts.resident;
  found["bytes"] = counts.bytes;
  found["budget"] = counts.budget;
  return found;
}

void check_readable(const Weight& weight) {
  if (weight.layout == Layout::quads) fail(ErrorKind::unsupported, "weight", "rows packed to int8 cannot be read back");
  if (weight.stack) fail(ErrorKind::unsupported, "weight", "read the matrices of a stack one by one");
}

nb::ndarray<nb::numpy, float> row(const Weight& weight, int64_t index) {
  if (index < 0 || index >= weight.rows) fail(ErrorKind::input, "weight", "row " + std::to_string(index) + " does not exist; there are " + std::to_string(weight.rows));
  check_readable(weight);
  auto* values = new float[static_cast<size_t>(weight.cols)];
  nb::capsule owner(values, [](void* pointer) noexcept { delete[] static_cast<float*>(pointer); });
  read_row(weight, index, values);
  size_t shape[1] = {static_cast<size_t>(weight.cols)};
  return nb::ndarray<nb::numpy, float>(values, 1, shape, owner);
}

nb::ndarray<nb::numpy, float> dense(const Weight& weight) {
  check_readable(weight);
  const auto rows = static_cast<size_t>(weight.rows), cols = static_cast<size_t>(weight.cols);
  auto* values = new float[rows * cols];
  nb::capsule owner(values, [](void* pointer) noexcept { delete[] static_cast<float*>(pointer); });
  for (size_t i = 0; i < rows; ++i) read_row(weight, static_cast<int64_t>(i), values + i * cols);
  size_t shape[2] = {rows, cols};
  return nb::ndarray<nb::numpy, float>(values, 2, shape, owner);
}

}  // namespace

void bind_pack(nb::module_& module) {
  module.def("has_panels", [](const std::string& dtype) { return has_panels(dtype_named(dtype)); });
  nb::class_<Arena>(module, "Arena").def(nb::init<>());
  nb::class_<PackingOfArrays>(module, "Packing")
      .def(nb::init<int, std::shared_ptr<Arena>, std::vector<Bytes>>(), nb::arg("threads") = 1,
           nb::arg("arena").none() = nb::none(), nb::arg("files") = nb::list())
      .def("add", &PackingOfArrays::add, nb::arg("layout"), nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"),
           nb::arg("data"), nb::arg("row_order") = nb::none())
      .def("start", &PackingOfArrays::start)
      .def("finish", &PackingOfArrays::finish);
  nb::class_<BoundExperts>(module, "ExpertMemory")
      .def(nb::init<size_t, std::vector<Bytes>>(), nb::arg("budget"), nb::arg("files"))
      .def("add", &add_experts, nb::arg("layout"), nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("matrices"), nb::arg("orders"))
      .def_prop_ro("counts", &expert_counts);
  nb::class_<Weight>(module, "Weight")
      .def_static("in_rows", &in_rows, nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"))
      .def_static("widened", &widened, nb::arg("dtype"), nb::arg("count"), nb::arg("data"),
                  nb::arg("row_order") = nb::none(), nb::arg("plus_one") = false, nb::arg("arena") = nb::none())
      .def_static("vector", &vector, nb::arg("values"), nb::arg("arena") = nb::none())
      .def_static("stacked", &stacked, nb::arg("matrices"))
      .def("row", &row)
      .def("dense", &dense)
      .def_prop_ro("dtype", [](const Weight& w) { return std::string(info(w.dtype).name); })
      .def_prop_ro("layout", [](const Weight& w) {
        constexpr const char* names[] = {"rows", "panels", "pairs", "quads"};
        return names[static_cast<size_t>(w.layout)];
      })
      .def_prop_ro("shape", [](const Weight& w) { return std::pair(w.rows * w.matrices, w.cols); })
      .def_prop_ro("nbytes", [](const Weight& w) { return w.bytes; });
}
