// plain_array: numpy's arrays read in place, for calls that take less time than asking for a buffer.
#pragma once
#include <Python.h>

namespace weft {

// What numpy promises about its objects to code that was compiled against any version from 1.7 on: the beginning of an
// array and of an element type. Asking through the buffer protocol would take longer than the distance itself. The
// first use compares this with what the buffer protocol says, and where they differ nothing is read this way.
struct NumpyType {
  PyObject_HEAD
  PyTypeObject* scalar;
  char kind, letter, byte_order, old_flags;
  int number;
};
struct NumpyArray {
  PyObject_HEAD
  char* data;
  int rank;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  PyObject* base;
  NumpyType* type;
  int flags;
};
constexpr int kContiguousAligned = 0x0001 | 0x0100;
constexpr int kInt8 = 1, kUint8 = 2, kUint16 = 4, kFloat32 = 11, kFloat16 = 23;

inline PyTypeObject* array_type = nullptr;  // numpy.ndarray, once it is known to look like NumpyArray

// A vector that can be read as it lies.
inline bool plain(PyObject* object) {
  if (Py_TYPE(object) != array_type) return false;
  const auto* array = reinterpret_cast<const NumpyArray*>(object);
  return array->rank == 1 && (array->flags & kContiguousAligned) == kContiguousAligned && array->type->byte_order != '>';
}

// Whether `array`, float32 [3], is laid out as this file assumes.
inline bool looks_right(PyObject* array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array, &view, PyBUF_FORMAT | PyBUF_STRIDES) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto* seen = reinterpret_cast<const NumpyArray*>(array);
  const bool same = seen->data == view.buf && seen->rank == 1 && view.ndim == 1 && seen->shape[0] == 3 &&
                    view.shape[0] == 3 && seen->strides[0] == 4 && seen->type->number == kFloat32 &&
                    seen->type->kind == 'f' && seen->type->byte_order != '>' &&
                    (seen->flags & kContiguousAligned) == kContiguousAligned;
  PyBuffer_Release(&view);
  return same;
}

// Looks at `example`, float32 [3]: true where arrays can be read in place.
inline bool learn_arrays(PyObject* example) {
  array_type = looks_right(example) ? Py_TYPE(example) : nullptr;
  return array_type != nullptr;
}

}  // namespace weft
