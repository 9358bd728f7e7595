// tiny: bindings of small networks. `row` takes one plain float32 vector past nanobind, which would take as long as the network.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "bind/plain_array.h"
#include "core/error.h"
#include "core/levels.h"
#include "tiny/net.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MatrixOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A network, and an array like its outputs, which is copied for each row.
struct HeldNet {
  std::unique_ptr<TinyNet> net;
  nb::object blank;
};

PyObject *copy_word = nullptr, *others = nullptr;  // others(net, row, out): takes what is no plain vector, and explains errors

void hold(HeldNet* self, const std::vector<Matrix>& weights, const std::vector<Vector>& biases, const std::vector<int>& activations,
          const std::vector<float>& slopes, float temperature, bool int8, const std::string& level, nb::object blank) {
  if (biases.size() != weights.size() || activations.size() != weights.size() || slopes.size() != weights.size())
    fail(ErrorKind::input, "tiny", "every layer needs a weight, a bias, an activation and a slope");
  std::vector<TinyGiven> layers;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (biases[i].shape(0) != weights[i].shape(0)) fail(ErrorKind::input, "tiny", "a bias must be as long as its weight has rows");
    if (activations[i] < 0 || activations[i] >= kTinyActivations) fail(ErrorKind::input, "tiny", "unknown activation");
    layers.push_back({static_cast<int64_t>(weights[i].shape(1)), static_cast<int64_t>(weights[i].shape(0)),
                      static_cast<TinyActivation>(activations[i]), slopes[i], weights[i].data(), biases[i].data()});
  }
  auto net = std::make_unique<TinyNet>(level_named(level), layers, temperature, int8);
  const auto* seen = reinterpret_cast<const NumpyArray*>(blank.ptr());
  if (array_type && (!plain(blank.ptr()) || seen->type->number != kFloat32 || seen->shape[0] != net->outputs()))
    fail(ErrorKind::input, "tiny", "the blank array must be float32 of as many numbers as there are outputs");
  new (self) HeldNet{std::move(net), std::move(blank)};
}

bool is_row(PyObject* object, int64_t length) {
  const auto* array = reinterpret_cast<const NumpyArray*>(object);
  return plain(object) && array->type->number == kFloat32 && array->shape[0] == length;
}

float* numbers(PyObject* object) { return reinterpret_cast<float*>(reinterpret_cast<NumpyArray*>(object)->data); }

// row(x[, out]): the outputs of one row, in a new array or in `out`.
PyObject* row(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HeldNet& held = *nb::inst_ptr<HeldNet>(self);
  constexpr int kWritable = 0x0400;
  if (count >= 1 && count <= 2 && is_row(args[0], held.net->inputs()) &&
      (count == 1 || (is_row(args[1], held.net->outputs()) && (reinterpret_cast<NumpyArray*>(args[1])->flags & kWritable)))) {
    PyObject* blank = held.blank.ptr();
    PyObject* out = count == 2 ? Py_NewRef(args[1]) : PyObject_VectorcallMethod(copy_word, &blank, 1, nullptr);
    if (!out || held.net->row(numbers(args[0]), numbers(out))) return out;
    Py_DECREF(out);
  }
  if (!others) {
    PyErr_SetString(PyExc_RuntimeError, "weft.tiny is not imported");
    return nullptr;
  }
  PyObject* all[] = {self, count > 0 ? args[0] : Py_None, count > 1 ? args[1] : Py_None};
  if (count < 1 || count > 2) {
    PyErr_SetString(PyExc_TypeError, "row() takes a row of numbers, and an array for the outputs");
    return nullptr;
  }
  return PyObject_Vectorcall(others, all, 3, nullptr);
}

PyMethodDef row_method = {"row", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&row)), METH_FASTCALL,
                          "The outputs of one row: row(x[, out]). A float32 vector is read in place; nothing else is allocated than\n"
                          "the array that is returned, and with `out`, float32 of the outputs, nothing at all."};

int64_t rows(HeldNet& held, Matrix x, bool raw, MatrixOut out, Pool& pool) {
  if (static_cast<int64_t>(x.shape(1)) != held.net->inputs() || static_cast<int64_t>(out.shape(1)) != held.net->outputs() ||
      x.shape(0) != out.shape(0))
    fail(ErrorKind::shape, "tiny", "rows and outputs do not fit the network");
  nb::gil_scoped_release release;
  return held.net->rows(x.data(), static_cast<int64_t>(x.shape(0)), raw, out.data(), pool);
}

}  // namespace

void bind_tiny(nb::module_& module) {
  copy_word = PyUnicode_InternFromString("copy");
  nb::class_<HeldNet>(module, "Net")
      .def("__init__", &hold)
      .def_prop_ro("inputs", [](const HeldNet& held) { return held.net->inputs(); })
      .def_prop_ro("outputs", [](const HeldNet& held) { return held.net->outputs(); })
      .def_prop_ro("bytes", [](const HeldNet& held) { return held.net->bytes(); })
      .def_prop_ro("row", [](nb::handle self) { return nb::steal(PyCFunction_NewEx(&row_method, self.ptr(), nullptr)); })
      .def("rows", &rows);
  // start(example, others): `example` is float32 [3]. True where plain vectors are read directly.
  module.def("start", [](nb::object example, nb::object function) {
    others = function.release().ptr();
    return learn_arrays(example.ptr());
  });
}
