// quant: bindings of csrc/quant.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_quant(nb::module_&) {}
