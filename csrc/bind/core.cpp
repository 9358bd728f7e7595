// core: bindings of the executable, the thread pool, the states and the tables of adapters.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unordered_map.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bundle/verify.h"
#include "core/error.h"
#include "core/executable.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using AnyArray = nb::ndarray<nb::numpy, nb::c_contig, nb::device::cpu>;

DType element_type(const AnyArray& array) {
  if (array.dtype() == nb::dtype<float>()) return DType::f32;
  if (array.dtype() == nb::dtype<int32_t>()) return DType::i32;
  if (array.dtype() == nb::dtype<int8_t>()) return DType::i8;
  if (array.dtype() == nb::dtype<uint8_t>()) return DType::u8;
  if (array.dtype() == nb::dtype<int64_t>()) return DType::i64;
  fail(ErrorKind::input, "run", "inputs must be float32, int32, int64, int8 or uint8 arrays");
}

// Activations that numpy has no type for, int8 rows and bfloat16, cross the boundary as bytes: uint8 [rows, bytes].
bool crosses_as_bytes(DType dtype) { return is_quantised(dtype) || dtype == DType::bf16; }

std::vector<int64_t> element_shape(const AnyArray& array, DType wanted) {
  std::vector<int64_t> shape;
  for (size_t d = 0; d < array.ndim(); ++d) shape.push_back(static_cast<int64_t>(array.shape(d)));
  if (crosses_as_bytes(wanted) && !shape.empty()) shape.back() = shape.back() / info(wanted).bytes * info(wanted).block;
  return shape;
}

void allocate_output(OutputArray& output) {
  size_t count = 1;
  for (int64_t size : output.shape) count *= static_cast<size_t>(size);
  output.data = reinterpret_cast<std::byte*>(new float[count ? count : 1]);
}

nb::object to_numpy(const OutputArray& output, DType dtype) {
  auto* data = reinterpret_cast<float*>(output.data);
  nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<float*>(pointer); });
  std::vector<size_t> shape(output.shape.begin(), output.shape.end());
  if (crosses_as_bytes(dtype)) {
    shape.back() = shape.back() / static_cast<size_t>(info(dtype).block) * static_cast<size_t>(info(dtype).bytes);
    return nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, shape.size(), shape.data(), owner));
  }
  if (dtype == DType::i32) return nb::cast(nb::ndarray<nb::numpy, int32_t>(data, shape.size(), shape.data(), owner));
  if (dtype == DType::i8) return nb::cast(nb::ndarray<nb::numpy, int8_t>(data, shape.size(), shape.data(), owner));
  return nb::cast(nb::ndarray<nb::numpy, float>(data, shape.size(), shape.data(), owner));
}

using FloatArray = nb::ndarray<float, nb::c_contig, nb::device::cpu>;

nb::dict run(Executable& self, nb::dict inputs, Pool& pool, std::vector<int64_t>* nanoseconds, nb::dict to = {}) {
  std::vector<std::string> names;
  std::vector<AnyArray> arrays;
  std::vector<std::vector<int64_t>> shapes;
  for (auto [name, value] : inputs) {
    names.push_back(nb::cast<std::string>(name));
    arrays.push_back(nb::cast<AnyArray>(value));
  }
  std::vector<InputArray> given;
  shapes.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    DType wanted = self.program().values[static_cast<size_t>(self.program().index_of(names[i]))].dtype;
    DType dtype = element_type(arrays[i]);
    if (crosses_as_bytes(wanted) && dtype == DType::u8) dtype = wanted;
    shapes.push_back(element_shape(arrays[i], wanted));
    given.push_back({names[i], dtype, shapes.back(), static_cast<const std::byte*>(arrays[i].data())});
  }
  std::vector<OutputArray> outputs;
  for (auto [name, value] : to) {
    const auto array = nb::cast<FloatArray>(value);
    std::vector<int64_t> shape;
    for (size_t d = 0; d < array.ndim(); ++d) shape.push_back(static_cast<int64_t>(array.shape(d)));
    outputs.push_back({nb::cast<std::string>(name), std::move(shape), reinterpret_cast<std::byte*>(array.data())});
  }
  {
    nb::gil_scoped_release release;
    self.run(given, outputs, allocate_output, pool, nanoseconds);
  }
  nb::dict results;
  for (const OutputArray& output : outputs) {
    if (to.contains(output.name.c_str())) {
      results[output.name.c_str()] = to[output.name.c_str()];
      continue;
    }
    const Value& value = self.program().values[static_cast<size_t>(self.program().index_of(output.name))];
    results[output.name.c_str()] = to_numpy(output, value.dtype);
  }
  return results;
}

using Integers = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;

std::shared_ptr<KvState> new_state(const std::string& dtype, int64_t pages, int64_t heads, int64_t dim, bool own_memory) {
  DType type = dtype_named(dtype);
  if (!KvState::holds(type))
    fail(ErrorKind::unsupported, "state", "keys and values must be f32, f16, bf16, i8, i8r or i4r, not " + dtype);
  if (pages < 1 || heads < 1 || dim < 1 || pages > (int64_t{1} << 32) || heads > 65536 || dim > 65536)
    fail(ErrorKind::input, "state", "pages, heads and dim must be positive");
  if (pages > (int64_t{1} << 47) / (heads * dim * kPage * 4))  // more than processors can address
    fail(ErrorKind::memory, "state", std::to_string(pages) + " pages of " + std::to_string(heads) + " heads of " + std::to_string(dim) + " are too many");
  return std::make_shared<KvState>(type, pages, heads, dim, own_memory);
}

std::shared_ptr<KvState> make_state(const std::string& dtype, int64_t pages, int64_t heads, int64_t dim) {
  return new_state(dtype, pages, heads, dim, true);
}

// The states of all layers in one memory, each given by its type, heads and size of a head.
std::vector<std::shared_ptr<KvState>> make_states(
    const std::vector<std::tuple<std::string, int64_t, int64_t>>& layers, int64_t pages) {
  std::vector<std::shared_ptr<KvState>> states;
  int64_t bytes = 0;
  for (const auto& [dtype, heads, dim] : layers) {
    states.push_back(new_state(dtype, pages, heads, dim, false));
    bytes += static_cast<int64_t>(states.back()->page_bytes());
  }
  if (bytes > (int64_t{1} << 47) / pages)
    fail(ErrorKind::memory, "state", std::to_string(pages) + " pages of " + std::to_string(bytes) + " bytes are too many");
  join_states(states);
  return states;
}

// The slots of all layers in one memory, each layer given by the float32 of a slot.
std::vector<std::shared_ptr<SlotState>> make_slots(const std::vector<int64_t>& sizes, int64_t slots) {
  std::vector<std::shared_ptr<SlotState>> layers;
  int64_t total = 0;
  for (int64_t size : sizes) {
    if (slots < 1 || size < 1 || size > (int64_t{1} << 40) || slots > (int64_t{1} << 32))
      fail(ErrorKind::input, "state", "slots and their sizes must be positive");
    layers.push_back(std::make_shared<SlotState>(slots, size, false));
    total += static_cast<int64_t>(layers.back()->slot_bytes());
  }
  if (total > (int64_t{1} << 47) / std::max<int64_t>(slots, 1))
    fail(ErrorKind::memory, "state", std::to_string(slots) + " slots of " + std::to_string(total) + " bytes are too many");
  join_slots(layers);
  return layers;
}

// The slots' own memory as a numpy array [slots, size]; it lives as long as the state.
nb::object slot_array(nb::handle self) {
  const auto& state = nb::cast<const SlotState&>(self);
  const size_t shape[] = {static_cast<size_t>(state.slots), static_cast<size_t>(state.size)};
  const int64_t strides[] = {state.stride / static_cast<int64_t>(sizeof(float)), 1};
  return nb::cast(nb::ndarray<nb::numpy, float>(state.data, 2, shape, self, strides));
}

using PageOut = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using PageIn = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The state's own memory as a numpy array; it lives as long as the state. Blocks lie `block_bytes` apart.
template <class T>
nb::object view_of(nb::handle self, std::byte* data, std::initializer_list<int64_t> block) {
  const auto& state = nb::cast<const KvState&>(self);
  std::vector<size_t> shape{static_cast<size_t>(state.pages), static_cast<size_t>(state.heads)};
  const auto apart = state.block_bytes / static_cast<int64_t>(sizeof(T));
  std::vector<int64_t> strides{state.stride / static_cast<int64_t>(sizeof(T)), apart};
  for (int64_t size : block) shape.push_back(static_cast<size_t>(size));
  if (block.size() == 2) strides.push_back(*(block.end() - 1));
  strides.push_back(1);
  return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), self, strides.data()));
}

nb::object state_array(nb::handle self, bool key) {
  const auto& state = nb::cast<const KvState&>(self);
  std::byte* data = key ? state.key : state.value;
  if (state.dtype == DType::i4r) return view_of<uint8_t>(self, data, {state.element_bytes});
  const int64_t rows = key ? state.dim : kPage, cols = key ? kPage : state.dim;
  if (state.dtype == DType::f32) return view_of<float>(self, data, {rows, cols});
  if (KvState::is_scaled(state.dtype)) return view_of<int8_t>(self, data, {rows, cols});
  return view_of<uint16_t>(self, data, {rows, cols});
}

// The scales of codes, one per token and head; None for other types.
nb::object state_scales(nb::handle self, bool key) {
  const auto& state = nb::cast<const KvState&>(self);
  if (!KvState::is_scaled(state.dtype)) return nb::none();
  return view_of<float>(self, (key ? state.key : state.value) + state.element_bytes, {kPage});
}

void read_page(const KvState& state, int64_t page, PageOut out) {
  nb::gil_scoped_release release;
  state.read_page(page, reinterpret_cast<std::byte*>(out.data()), out.size());
}

void write_page(KvState& state, int64_t page, PageIn data) {
  nb::gil_scoped_release release;
  state.write_page(page, reinterpret_cast<const std::byte*>(data.data()), data.size());
}

void read_slot(const SlotState& state, int64_t slot, PageOut out) {
  nb::gil_scoped_release release;
  state.read_slot(slot, reinterpret_cast<std::byte*>(out.data()), out.size());
}

void write_slot(SlotState& state, int64_t slot, PageIn data) {
  nb::gil_scoped_release release;
  state.write_slot(slot, reinterpret_cast<const std::byte*>(data.data()), data.size());
}

}  // namespace

void bind_core(nb::module_& module) {
  module.def("levels_present", &levels_present, "Names of the instruction-set levels this machine runs, lowest first.");
  module.def("kernels", [](const std::string& level) { return kernel_names(level_named(level)); });
  module.attr("PAGE_TOKENS") = kPage;
  module.def("within", [](Integers values, int64_t limit) { return within({values.data(), values.size()}, limit); },
             nb::arg("values"), nb::arg("limit"), "Whether all of an int32 array is at least 0 and below `limit`.");

  module.def("verify_program", [](const std::string& program) { bundle::verify(read_program(program)); },
             "Refuse a program that a bundle may not have; what C hosts check.");

  nb::class_<Pool>(module, "Pool").def(nb::init<int>()).def_prop_ro("size", &Pool::size);

  nb::class_<KvState>(module, "KvState")
      .def_static("make", &make_state)
      .def_static("make_all", &make_states)
      .def_prop_ro("key", [](nb::handle self) { return state_array(self, true); })
      .def_prop_ro("value", [](nb::handle self) { return state_array(self, false); })
      .def_prop_ro("key_scales", [](nb::handle self) { return state_scales(self, true); })
      .def_prop_ro("value_scales", [](nb::handle self) { return state_scales(self, false); })
      .def_prop_ro("dtype", [](const KvState& s) { return std::string(info(s.dtype).name); })
      .def_prop_ro("dim", [](const KvState& s) { return s.dim; })
      .def_prop_ro("page_bytes", &KvState::page_bytes)
      .def("read_page", &read_page)
      .def("write_page", &write_page)
      .def("copy_page", &KvState::copy_page, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<SlotState>(module, "SlotState")
      .def_static("make_all", &make_slots)
      .def_prop_ro("values", &slot_array)
      .def_prop_ro("slot_bytes", &SlotState::slot_bytes)
      .def("read_slot", &read_slot)
      .def("write_slot", &write_slot);

  using Part = AdapterTable::Kept;
  module.attr("ADAPTERS") = kAdapters;
  nb::class_<AdapterTable>(module, "AdapterTable")
      .def("__init__",
           [](AdapterTable* self, int64_t rows, int64_t cols, std::optional<int64_t> matrices) {
             new (self) AdapterTable(rows, cols, matrices.value_or(1));
           },
           nb::arg("rows"), nb::arg("cols"), nb::arg("matrices") = nb::none())
      .def("put",
           [](AdapterTable& self, int64_t index, Part down, Part up, Part scale, Part gain, Part shift, int64_t matrix) {
             self.put(index, std::move(down), std::move(up), std::move(scale), std::move(gain), std::move(shift), matrix);
           },
           nb::arg("index"), nb::arg("down").none(), nb::arg("up").none(), nb::arg("scale").none(),
           nb::arg("gain").none(), nb::arg("shift").none(), nb::arg("matrix") = 0)
      .def("clear", &AdapterTable::clear, nb::arg("index"))
      .def("holds", [](const AdapterTable& self, int64_t index) {
        return index > 0 && index < kAdapters && self.part(index).present();
      });

  nb::class_<Executable>(module, "Executable")
      .def("__init__",
           [](Executable* self, const std::string& program, Executable::Weights weights, Executable::States states,
              const std::string& level, Executable::Tables tables) {
             new (self) Executable(read_program(program), std::move(weights), std::move(states), level_named(level),
                                   std::move(tables));
           },
           nb::arg("program"), nb::arg("weights"), nb::arg("states"), nb::arg("level"), nb::arg("tables") = nb::dict())
      .def("run", [](Executable& self, nb::dict inputs, Pool& pool) { return run(self, inputs, pool, nullptr); })
      .def("run_into", [](Executable& self, nb::dict inputs, nb::dict to, Pool& pool) { return run(self, inputs, pool, nullptr, to); })
      .def("profile",
           [](Executable& self, nb::dict inputs, Pool& pool) {
             std::vector<int64_t> nanoseconds;
             nb::dict results = run(self, inputs, pool, &nanoseconds);
             return std::pair(results, nanoseconds);
           })
      .def("watch", &Executable::watch)
      .def("arena_bytes", [](const Executable& self, int64_t t, int64_t b, int64_t l) { return self.arena_bytes({t, b, l}); })
      .def_prop_ro("level", [](const Executable& self) { return std::string(self.level().name); });
}
