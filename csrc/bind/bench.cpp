// bench: binding of the measured roofs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bench/roofs.h"
#include "core/error.h"

namespace nb = nanobind;
using namespace weft;

void bind_bench(nb::module_& module) {
  module.def("roof_names", [](const std::string& level) { return roof_names(level_named(level)); });
  module.def(
      "measure_roof",
      [](const std::string& name, const std::string& level, Pool& pool, size_t bytes, double seconds, int repeats) {
        if (bytes > size_t{1} << 34 || !(seconds > 0 && seconds <= 10) || repeats < 1 || repeats > 1000)
          fail(ErrorKind::input, "roofs", "at most 16 GB, 10 seconds and 1,000 repeats");
        nb::gil_scoped_release released;
        return measure_roof(name, level_named(level), pool, bytes, seconds, repeats);
      },
      nb::arg("name"), nb::arg("level"), nb::arg("pool"), nb::arg("bytes"), nb::arg("seconds"), nb::arg("repeats"));
}
