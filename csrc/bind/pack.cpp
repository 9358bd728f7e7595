// pack: bindings of weights as the kernels read them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/weight.h"
#include "pack/pairs.h"
#include "pack/panels.h"
#include "pack/quads.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

size_t row_bytes(DType dtype, int64_t cols) {
  if (cols < 1 || cols % info(dtype).block) fail(ErrorKind::input, "[weight] a row of " + std::to_string(cols) + " is not whole blocks of " + std::string(info(dtype).name));
  return bytes_of(dtype, static_cast<size_t>(cols));
}

void check_size(DType dtype, int64_t rows, int64_t cols, size_t given) {
  size_t wanted = 0;
  if (rows < 1 || __builtin_mul_overflow(row_bytes(dtype, cols), static_cast<size_t>(rows), &wanted) || wanted != given)
    fail(ErrorKind::input, "[weight] (" + std::to_string(rows) + ", " + std::to_string(cols) + ") of " + std::string(info(dtype).name) + " does not fill " + std::to_string(given) + " bytes");
}

std::shared_ptr<Weight> in_rows(const std::string& name, int64_t rows, int64_t cols, Bytes bytes) {
  auto weight = std::make_shared<Weight>();
  weight->dtype = dtype_named(name);
  check_size(weight->dtype, rows, cols, bytes.size());
  weight->rows = rows;
  weight->cols = cols;
  weight->data = reinterpret_cast<const std::byte*>(bytes.data());
  weight->bytes = bytes.size();
  // the array keeps the mapping alive; it is let go with the GIL held
  weight->borrowed = std::shared_ptr<void>(new Bytes(bytes), [](void* pointer) {
    nb::gil_scoped_acquire acquire;
    delete static_cast<Bytes*>(pointer);
  });
  return weight;
}

// Memory for the weight's bytes, part of the arena where there is one.
std::byte* allocate(Weight& weight, Arena* arena) {
  if (!arena) {
    weight.owned = Memory(weight.bytes);
    weight.data = weight.owned.data();
    return weight.owned.data();
  }
  std::shared_ptr<std::byte> block = arena->take(weight.bytes);
  weight.data = block.get();
  weight.borrowed = block;
  return block.get();
}

void check_order(const std::optional<Order>& order, int64_t rows) {
  if (!order) return;
  if (static_cast<int64_t>(order->size()) != rows) fail(ErrorKind::input, "[weight] row_order must name every row");
  for (size_t i = 0; i < order->size(); ++i)
    if (order->data()[i] < 0 || order->data()[i] >= rows) fail(ErrorKind::input, "[weight] row_order names a row that is not there");
}

// Packed by `pack`, which is pack_panels, pack_pairs or pack_split, into memory of its own.
std::shared_ptr<Weight> packed(Layout layout, decltype(&pack_panels) pack, const std::string& name, int64_t rows, int64_t cols, Bytes bytes, std::optional<Order> order, int threads, Arena* arena) {
  auto weight = std::make_shared<Weight>();
  const DType stored = dtype_named(name);
  check_size(stored, rows, cols, bytes.size());
  check_order(order, rows);
  weight->dtype = layout == Layout::pairs ? DType::bf16 : stored;
  weight->layout = layout;
  weight->rows = rows;
  weight->cols = pack == &pack_split ? 2 * cols : cols;
  weight->bytes = layout == Layout::pairs ? pairs_bytes(rows, weight->cols) : panels_bytes(stored, rows, cols);
  const auto* from = reinterpret_cast<const std::byte*>(bytes.data());
  const int32_t* sequence = order ? order->data() : nullptr;
  nb::gil_scoped_release release;
  std::byte* to = allocate(*weight, arena);
  int64_t panels = (rows + 15) / 16;
  int64_t team = std::max<int64_t>(1, std::min<int64_t>(threads, panels / 8));
  std::vector<std::thread> workers;
  auto pack_part = [&](int64_t part) {
    pack(stored, from, row_bytes(stored, cols), sequence, rows, cols, to, panels * part / team,
         panels * (part + 1) / team);
  };
  for (int64_t part = 1; part < team; ++part) workers.emplace_back(pack_part, part);
  pack_part(0);
  for (std::thread& worker : workers) worker.join();
  return weight;
}

std::shared_ptr<Weight> in_panels(const std::string& name, int64_t rows, int64_t cols, Bytes bytes, std::optional<Order> order, int threads, Arena* arena) {
  return packed(Layout::panels, &pack_panels, name, rows, cols, bytes, order, threads, arena);
}

std::shared_ptr<Weight> in_pairs(const std::string& name, int64_t rows, int64_t cols, Bytes bytes, std::optional<Order> order, int threads, Arena* arena) {
  return packed(Layout::pairs, &pack_pairs, name, rows, cols, bytes, order, threads, arena);
}

std::shared_ptr<Weight> in_split(const std::string& name, int64_t rows, int64_t cols, Bytes bytes, std::optional<Order> order, int threads, Arena* arena) {
  if (cols < 1 || cols % kPairColumns || cols > INT32_MAX) fail(ErrorKind::input, "[weight] rows of " + std::to_string(cols) + " are not whole steps of 32");
  return packed(Layout::pairs, &pack_split, name, rows, cols, bytes, order, threads, arena);
}

std::shared_ptr<Weight> in_quads(const std::string& name, int64_t rows, int64_t cols, Bytes bytes, bool equalise, std::optional<Order> order, int threads, Arena* arena) {
  auto weight = std::make_shared<Weight>();
  weight->dtype = dtype_named(name);
  check_size(weight->dtype, rows, cols, bytes.size());
  check_order(order, rows);
  if (cols % kQuadColumns || cols > INT32_MAX) fail(ErrorKind::input, "[weight] rows of " + std::to_string(cols) + " are not whole steps of 64");
  weight->layout = Layout::quads;
  weight->rows = rows;
  weight->cols = cols;
  weight->bytes = quads_bytes(rows, cols);
  nb::gil_scoped_release release;
  pack_quads(weight->dtype, reinterpret_cast<const std::byte*>(bytes.data()), row_bytes(weight->dtype, cols),
             order ? order->data() : nullptr, rows, cols, equalise, allocate(*weight, arena), threads);
  return weight;
}

std::shared_ptr<Weight> vector(Floats values, Arena* arena) {
  auto weight = std::make_shared<Weight>();
  weight->rows = 1;
  weight->cols = static_cast<int64_t>(values.size());
  weight->bytes = values.size() * sizeof(float);
  if (weight->bytes) std::memcpy(allocate(*weight, arena), values.data(), weight->bytes);
  return weight;
}

nb::ndarray<nb::numpy, float> row(const Weight& weight, int64_t index) {
  if (index < 0 || index >= weight.rows) fail(ErrorKind::input, "[weight] row " + std::to_string(index) + " of " + std::to_string(weight.rows));
  if (weight.layout == Layout::quads) fail(ErrorKind::unsupported, "[weight] rows of int8 are not read back");
  auto* values = new float[static_cast<size_t>(weight.cols)];
  nb::capsule owner(values, [](void* pointer) noexcept { delete[] static_cast<float*>(pointer); });
  read_row(weight, index, values);
  size_t shape[1] = {static_cast<size_t>(weight.cols)};
  return nb::ndarray<nb::numpy, float>(values, 1, shape, owner);
}

}  // namespace

void bind_pack(nb::module_& module) {
  module.def("has_panels", [](const std::string& dtype) { return has_panels(dtype_named(dtype)); });
  nb::class_<Arena>(module, "Arena").def(nb::init<>());
  nb::class_<Weight>(module, "Weight")
      .def_static("in_rows", &in_rows, nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"))
      .def_static("in_panels", &in_panels, nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"),
                  nb::arg("row_order") = nb::none(), nb::arg("threads") = 1, nb::arg("arena") = nb::none())
      .def_static("in_pairs", &in_pairs, nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"),
                  nb::arg("row_order") = nb::none(), nb::arg("threads") = 1, nb::arg("arena") = nb::none())
      .def_static("in_quads", &in_quads, nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"),
                  nb::arg("equalise"), nb::arg("row_order") = nb::none(), nb::arg("threads") = 1, nb::arg("arena") = nb::none())
      .def_static("in_split", &in_split, nb::arg("dtype"), nb::arg("rows"), nb::arg("cols"), nb::arg("data"),
                  nb::arg("row_order") = nb::none(), nb::arg("threads") = 1, nb::arg("arena") = nb::none())
      .def_static("vector", &vector, nb::arg("values"), nb::arg("arena") = nb::none())
      .def("row", &row)
      .def_prop_ro("dtype", [](const Weight& w) { return std::string(info(w.dtype).name); })
      .def_prop_ro("layout", [](const Weight& w) {
        constexpr const char* names[] = {"rows", "panels", "pairs", "quads"};
        return names[static_cast<size_t>(w.layout)];
      })
      .def_prop_ro("shape", [](const Weight& w) { return std::pair(w.rows, w.cols); })
      .def_prop_ro("nbytes", [](const Weight& w) { return w.bytes; });
}
