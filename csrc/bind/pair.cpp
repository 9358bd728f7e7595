// pair: the distance of two vectors with little overhead per call. Two plain numpy arrays of one float type or int8 are read
// in place; everything else, errors included, goes to a function written in Python.
#include <nanobind/nanobind.h>

#include <cmath>

#include "bind/plain_array.h"
#include "core/error.h"
#include "vectors/active.h"
#include "vectors/rows.h"
#include "vectors/score.h"

namespace nb = nanobind;
using namespace weft;

namespace {

PyObject *dtype_word = nullptr, *bf16_word = nullptr;

// Which sums two arrays of this element type take, or -1.
int type_of(int number, bool as_bf16) {
  if (as_bf16) return number == kUint16 ? static_cast<int>(Element::bf16) : -1;
  switch (number) {
    case kFloat32: return static_cast<int>(Element::f32);
    case kFloat16: return static_cast<int>(Element::f16);
    case kInt8: return static_cast<int>(Element::i8);
    case kUint8: return static_cast<int>(Element::bits);
    default: return -1;
  }
}

template <Metric metric>
double float_pair(const VectorKernels& kernels, int type, const void* a, const void* b, int64_t dim) {
  const FloatSums& sums = kernels.pair[type];
  float out[3];
  if constexpr (metric == Metric::cosine) {
    kernels.three[type](a, b, dim, out);
    return cosine_of(out[0], std::sqrt(static_cast<double>(out[1])), std::sqrt(static_cast<double>(out[2])));
  }
  const FloatSum sum = metric == Metric::dot ? sums.dot : metric == Metric::manhattan ? sums.absolute : sums.squared;
  sum(a, static_cast<const std::byte*>(b), 0, 1, dim, out);
  return metric == Metric::euclidean ? std::sqrt(out[0]) : out[0];
}

template <Metric metric>
double int_pair(const VectorKernels& kernels, const void* a, const void* b, int64_t dim) {
  const auto* other = static_cast<const std::byte*>(b);
  int32_t sum = 0, aa = 0, bb = 0;
  (metric == Metric::manhattan ? kernels.i8_absolute : kernels.i8_dot)(a, other, 0, 1, dim, &sum);
  if constexpr (metric == Metric::dot || metric == Metric::manhattan) return static_cast<float>(sum);
  kernels.i8_squares(nullptr, static_cast<const std::byte*>(a), 0, 1, dim, &aa);
  kernels.i8_squares(nullptr, other, 0, 1, dim, &bb);
  if constexpr (metric == Metric::cosine)
    return static_cast<float>(sum / (std::sqrt(static_cast<double>(aa)) * std::sqrt(static_cast<double>(bb))));
  const double squared = static_cast<double>(int64_t{aa} + bb - 2 * int64_t{sum});
  return static_cast<float>(metric == Metric::euclidean ? std::sqrt(squared) : squared);
}

// The distance, or NaN where the Python function must decide.
template <Metric metric>
double distance(const NumpyArray* a, const NumpyArray* b, bool as_bf16) {
  const int64_t dim = a->shape[0];
  const int type = type_of(a->type->number, as_bf16);
  if (dim != b->shape[0] || dim < 1 || dim > kMaxDim || a->type->number != b->type->number || type < 0) return NAN;
  const VectorKernels& kernels = active_kernels();
  if constexpr (metric == Metric::hamming) {
    if (type != static_cast<int>(Element::bits)) return NAN;
    int32_t bits = 0;
    kernels.hamming(a->data, reinterpret_cast<const std::byte*>(b->data), 0, 1, dim, &bits);
    return bits;
  } else {
    if (type < kFloatTypes) return float_pair<metric>(kernels, type, a->data, b->data, dim);
    return type == static_cast<int>(Element::i8) ? int_pair<metric>(kernels, a->data, b->data, dim) : NAN;
  }
}

// -1 for unknown keywords, else whether they are dtype="bf16".
int says_bf16(PyObject* names, PyObject* const* values) {
  if (!names) return 0;
  if (PyTuple_GET_SIZE(names) != 1 || PyTuple_GET_ITEM(names, 0) != dtype_word) return -1;
  if (*values == bf16_word) return 1;
  return PyUnicode_Check(*values) && PyUnicode_CompareWithASCIIString(*values, "bf16") == 0 ? 1 : -1;
}

constexpr const char* kNames[] = {"dot", "cosine", "sqeuclidean", "euclidean", "manhattan", "hamming"};  // by metric

// `others` maps names to the functions to call for all other arguments.
template <Metric metric>
PyObject* pair(PyObject* others, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  const int bf16 = says_bf16(names, args + count);
  if (count == 2 && bf16 >= 0 && plain(args[0]) && plain(args[1])) {
    const auto *a = reinterpret_cast<const NumpyArray*>(args[0]), *b = reinterpret_cast<const NumpyArray*>(args[1]);
    const double found = distance<metric>(a, b, bf16);
    if (std::isfinite(found)) return PyFloat_FromDouble(found);
  }
  PyObject* other = PyDict_GetItemString(others, kNames[static_cast<size_t>(metric)]);
  if (other) return PyObject_Vectorcall(other, args, static_cast<size_t>(count), names);
  PyErr_SetString(PyExc_RuntimeError, "weft.vectors is not imported");
  return nullptr;
}

constexpr const char* kDoc =
    "The distance of a and b, [d] or [n, d] each: of two vectors a float, of one and many [n], of many and many [m, n].\n\n"
    "(a, b, *, dtype=None, out=None, threads=None): elements are float32, float16, bfloat16 (uint16 with dtype=\"bf16\") or\n"
    "int8; of hamming, bits packed in uint8. Lengths that differ, NaN, infinities and, for cosine, a norm of zero are errors.";

template <Metric metric>
PyMethodDef method() {
  const auto plain = reinterpret_cast<void (*)()>(&pair<metric>);
  return {kNames[static_cast<size_t>(metric)], reinterpret_cast<PyCFunction>(plain), METH_FASTCALL | METH_KEYWORDS, kDoc};
}

}  // namespace

void bind_pair(nb::module_& module) {
  dtype_word = PyUnicode_InternFromString("dtype");
  bf16_word = PyUnicode_InternFromString("bf16");
  static PyMethodDef methods[] = {method<Metric::dot>(),       method<Metric::cosine>(),    method<Metric::squared>(),
                                  method<Metric::euclidean>(), method<Metric::manhattan>(), method<Metric::hamming>()};
  nb::dict others;
  for (PyMethodDef& each : methods)
    module.attr(each.ml_name) = nb::steal(PyCFunction_NewEx(&each, others.ptr(), nullptr));
  // start_pairs(example, functions): `example` is float32 [3]; the functions, by name, take all other arguments. True
  // where plain arrays are read directly.
  module.def("start_pairs", [others](nb::object example, nb::dict functions) {
    others.attr("update")(functions);
    return learn_arrays(example.ptr());
  });
}
