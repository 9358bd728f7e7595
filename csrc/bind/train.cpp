// train: bindings of the optimiser. Arrays are numpy's vectors of float32, changed in place.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "core/error.h"
#include "train/adamw.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Given = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Changed = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_adamw(Given gradient, Changed value, Changed first, Changed second, float beta1, float rest1, float beta2, float rest2,
                float kept, float root, float eps, float rate) {
  const size_t n = gradient.shape(0);
  if (value.shape(0) != n || first.shape(0) != n || second.shape(0) != n)
    fail(ErrorKind::shape, "train", "weights, means and gradient must have the same size");
  nb::gil_scoped_release release;
  adamw({beta1, rest1, beta2, rest2, kept, root, eps, rate}, gradient.data(), value.data(), first.data(), second.data(),
        static_cast<int64_t>(n));
}

double bind_sum_of_squares(Given values) {
  nb::gil_scoped_release release;
  return sum_of_squares(values.data(), static_cast<int64_t>(values.shape(0)));
}

}  // namespace

void bind_train(nb::module_& module) {
  using namespace nb::literals;
  module.def("adamw", bind_adamw, "gradient"_a.noconvert(), "value"_a.noconvert(), "first"_a.noconvert(), "second"_a.noconvert(),
             "beta1"_a, "rest1"_a, "beta2"_a, "rest2"_a, "kept"_a, "root"_a, "eps"_a, "rate"_a);
  module.def("sum_of_squares", bind_sum_of_squares, "values"_a.noconvert());
}
