// pictures: bindings of resizing. Pixels are numpy's bytes [rows, cols, 3].
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "core/error.h"
#include "pictures/resize.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Rows = nb::ndarray<const uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Pixels = nb::ndarray<uint8_t, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const float, nb::shape<kColours, 256>, nb::c_contig, nb::device::cpu>;
using Patches = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kMost = 1 << 16;  // pixels of a side of the source: the weights of all of them fit into some megabytes
constexpr int64_t kWindow = 1 << 14;

[[noreturn]] void wrong(const std::string& what) { fail(ErrorKind::input, "pictures", what); }

Filter filter_of(const std::string& name) {
  if (name == "bilinear") return Filter::bilinear;
  if (name == "bicubic") return Filter::bicubic;
  if (name == "lanczos") return Filter::lanczos;
  wrong("unknown filter: " + name + "; use bilinear, bicubic or lanczos");
}

void make_resize(Resize* self, int64_t rows, int64_t cols, int64_t to_rows, int64_t to_cols, int64_t top, int64_t left,
                 int64_t window_rows, int64_t window_cols, const std::string& filter) {
  const auto outside = [](int64_t value, int64_t least, int64_t most) { return value < least || value > most; };
  if (outside(rows, 1, kMost) || outside(cols, 1, kMost)) wrong("a side of the picture must have 1 to 65536 pixels");
  if (outside(window_rows, 1, kWindow) || outside(window_cols, 1, kWindow)) wrong("a side of the window must have 1 to 16384 pixels");
  if (outside(to_rows, 1, int64_t{1} << 40) || outside(to_cols, 1, int64_t{1} << 40)) wrong("the result must have 1 or more pixels a side");
  if (outside(top, -kWindow, to_rows) || outside(left, -kWindow, to_cols)) wrong("the window is outside the result");
  const Filter chosen = filter_of(filter);
  nb::gil_scoped_release release;
  new (self) Resize({rows, cols}, {to_rows, to_cols}, {top, left}, {window_rows, window_cols}, chosen);
}

void bind_take(Resize& self, int64_t at, Rows rows, Pool& pool) {
  const auto count = static_cast<int64_t>(rows.shape(0)), cols = static_cast<int64_t>(rows.shape(1));
  if (cols != self.source().cols || rows.shape(2) != kColours || at < 0 || at + count > self.source().rows)
    wrong("rows must be bytes [n, cols, 3] of the source");
  nb::gil_scoped_release release;
  self.take(at, count, rows.data(), pool);
}

void bind_pixels(const Resize& self, Pixels out, Pool& pool) {
  const Frame window = self.window();
  if (static_cast<int64_t>(out.shape(0)) != window.rows || static_cast<int64_t>(out.shape(1)) != window.cols || out.shape(2) != kColours)
    wrong("out must be bytes [rows, cols, 3] of the window");
  nb::gil_scoped_release release;
  self.pixels(out.data(), pool);
}

void bind_patches(const Resize& self, Patches out, Table table, int64_t patch, bool interleaved, Pool& pool) {
  const Frame window = self.window();
  if (patch < 1 || window.rows < patch || window.cols < patch) wrong("a patch must have 1 to as many pixels as the window");
  const int64_t count = window.rows / patch * (window.cols / patch), size = patch * patch * kColours;
  if (static_cast<int64_t>(out.shape(0)) != count || static_cast<int64_t>(out.shape(1)) != size) wrong("out must be floats [patches, 3 patch²]");
  nb::gil_scoped_release release;
  self.patches(out.data(), table.data(), patch, interleaved, pool);
}

}  // namespace

void bind_pictures(nb::module_& module) {
  using namespace nb::literals;
  nb::class_<Resize>(module, "Resize")
      .def("__init__", make_resize, "rows"_a, "cols"_a, "to_rows"_a, "to_cols"_a, "top"_a, "left"_a, "window_rows"_a,
           "window_cols"_a, "filter"_a)
      .def_prop_ro("first_row", &Resize::first_row)
      .def_prop_ro("end_row", &Resize::end_row)
      .def("take", bind_take, "at"_a, "rows"_a.noconvert(), "pool"_a)
      .def("pixels", bind_pixels, "out"_a.noconvert(), "pool"_a)
      .def("patches", bind_patches, "out"_a.noconvert(), "table"_a.noconvert(), "patch"_a, "interleaved"_a, "pool"_a);
}
