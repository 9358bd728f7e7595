// text: bindings of csrc/text.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_text(nb::module_&) {}
