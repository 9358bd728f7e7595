// core: bindings of csrc/core.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_core(nb::module_&) {}
