// quant: bindings of csrc/quant, and the walk over string lists that GGUF's reader needs.
#include "quant/strings.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "quant/dequant.h"
#include "quant/encode.h"

namespace nb = nanobind;
using namespace nb::literals;

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
static nb::ndarray<nb::numpy, T, nb::ndim<1>> give(std::unique_ptr<T[]> values, size_t count) {
  T* data = values.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {data, {count}, owner};
}

static nb::ndarray<nb::numpy, float, nb::ndim<1>> dequantise(const std::string& dtype_name, Bytes bytes, size_t count) {
  const weft::DType dtype = weft::dtype_named(dtype_name);
  const weft::DTypeInfo& type = weft::info(dtype);
  const size_t blocks = count / static_cast<size_t>(type.block);
  // Comparing block counts keeps the arithmetic inside the size of memory that exists.
  if (count % static_cast<size_t>(type.block) || bytes.size() % static_cast<size_t>(type.bytes) ||
      blocks != bytes.size() / static_cast<size_t>(type.bytes))
    weft::fail(weft::ErrorKind::input, "dequantise", std::to_string(bytes.size()) + " bytes are not " +
                                           std::to_string(count) + " elements of " + dtype_name);
  auto out = std::make_unique_for_overwrite<float[]>(count);
  {
    nb::gil_scoped_release release;
    weft::dequantise(dtype, reinterpret_cast<const std::byte*>(bytes.data()), out.get(), count);
  }
  return give(std::move(out), count);
}

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> encode(const std::string& dtype_name, Floats values, size_t columns,
                                                           std::optional<Floats> importance) {
  const weft::DType dtype = weft::dtype_named(dtype_name);
  const weft::DTypeInfo& type = weft::info(dtype);
  if (importance && importance->size() != columns)
    weft::fail(weft::ErrorKind::input, "encode", "importance has " + std::to_string(importance->size()) +
                                           " numbers for " + std::to_string(columns) + " columns");
  const size_t bytes = values.size() / static_cast<size_t>(type.block) * static_cast<size_t>(type.bytes);
  auto out = std::make_unique_for_overwrite<uint8_t[]>(bytes);
  {
    nb::gil_scoped_release release;
    weft::encode(dtype, values.data(), importance ? importance->data() : nullptr, reinterpret_cast<std::byte*>(out.get()),
                 values.size(), columns);
  }
  return give(std::move(out), bytes);
}

static nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> encode_with_feedback(
    const std::string& dtype_name, nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> values, size_t columns,
    std::optional<Floats> importance, Floats factor) {
  const weft::DType dtype = weft::dtype_named(dtype_name);
  const weft::DTypeInfo& type = weft::info(dtype);
  if ((importance && importance->size() != columns) || factor.size() != columns * columns)
    weft::fail(weft::ErrorKind::input, "encode", "importance or factor does not fit " + std::to_string(columns) + " columns");
  const size_t bytes = values.size() / static_cast<size_t>(type.block) * static_cast<size_t>(type.bytes);
  auto out = std::make_unique_for_overwrite<uint8_t[]>(bytes);
  {
    nb::gil_scoped_release release;
    weft::encode_with_feedback(dtype, values.data(), importance ? importance->data() : nullptr, factor.data(),
                               reinterpret_cast<std::byte*>(out.get()), values.size(), columns);
  }
  return give(std::move(out), bytes);
}

static nb::ndarray<nb::memview, uint64_t, nb::ndim<1>> string_offsets(Bytes bytes, size_t start, size_t count,
                                                                      size_t limit) {
  std::unique_ptr<uint64_t[]> offsets;
  {
    nb::gil_scoped_release release;
    offsets = weft::string_offsets({bytes.data(), bytes.size()}, start, count, limit);
  }
  uint64_t* data = offsets.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<uint64_t*>(p); });
  return {data, {count + 1}, owner};
}

void bind_quant(nb::module_& module) {
  module.def("dequantise", &dequantise, "dtype"_a, "bytes"_a, "count"_a,
             "`count` elements of type `dtype` stored in `bytes` (uint8, exactly their size) as float32 [count].");
  module.def("encode_with_feedback", &encode_with_feedback, "dtype"_a, "values"_a, "columns"_a,
             "importance"_a.none() = nb::none(), "factor"_a,
             "`values` as `encode` would, but what rounding misses is spread over later columns; `values` change.");
  module.def("encode", &encode, "dtype"_a, "values"_a, "columns"_a, "importance"_a.none() = nb::none(),
             "The blocks (uint8) of finite float32 values, rows of `columns`; `importance` has a number for each column.");
  module.def("can_encode", [](const std::string& dtype) { return weft::can_encode(weft::dtype_named(dtype)); }, "dtype"_a,
             "Whether blocks of this type can be made.");
  module.def("string_offsets", &string_offsets, "bytes"_a, "start"_a, "count"_a, "limit"_a,
             "Where each of `count` length-prefixed strings begins, from byte `start` on; a view of uint64 [count + 1].\n\n"
             "String i is bytes[offsets[i] + 8 : offsets[i + 1]]. One over `limit` bytes, or past the end, is a "
             "FormatError.");
}
