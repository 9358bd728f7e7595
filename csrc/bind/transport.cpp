// transport: bindings of costs and passes. Arrays are numpy's, of doubles; points may be float32.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/levels.h"
#include "transport/passes.h"
#include "transport/sweep.h"

namespace nb = nanobind;
using namespace weft;

namespace {

using Any = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Given = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using VectorOut = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MatrixOut = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void wrong(const std::string& what) { fail(ErrorKind::input, "transport", what); }

// A cost and the arrays it reads, which it keeps alive.
struct HeldCosts {
  Any rows, cols;
  std::unique_ptr<Costs> costs;
};

Points points_of(const Any& array) {
  const nb::dlpack::dtype type = array.dtype();
  const bool wide = type == nb::dtype<double>();
  if (!wide && type != nb::dtype<float>()) wrong("points must be float32 or float64");
  return {array.data(), static_cast<int64_t>(array.shape(0)), static_cast<int64_t>(array.shape(1)), wide};
}

void hold_points(HeldCosts* self, Any rows, Any cols, const std::string& metric, Pool& pool) {
  const Points x = points_of(rows), y = points_of(cols);
  if (x.wide != y.wide || x.dim != y.dim) wrong("both sets of points must have one type and dimension");
  if (metric != "sqeuclidean" && metric != "cosine") wrong("unknown cost: " + metric + "; use sqeuclidean or cosine");
  auto* made = new (self) HeldCosts{std::move(rows), std::move(cols), nullptr};
  try {
    nb::gil_scoped_release release;
    made->costs = std::make_unique<Costs>(active_transport(), x, y, metric == "cosine" ? CostMetric::cosine : CostMetric::squared, pool);
  } catch (...) {
    made->~HeldCosts();
    throw;
  }
}

void hold_matrix(HeldCosts* self, Given matrix) {
  const auto n = static_cast<int64_t>(matrix.shape(0)), m = static_cast<int64_t>(matrix.shape(1));
  auto costs = std::make_unique<Costs>(active_transport(), matrix.data(), n, m);
  new (self) HeldCosts{Any(matrix), Any(), std::move(costs)};
}

int64_t rows_of(const HeldCosts& held, bool turned) { return turned ? held.costs->cols() : held.costs->rows(); }

Range checked(const HeldCosts& held, bool turned, int64_t first, int64_t count) {
  if (first < 0 || count < 0 || first + count > rows_of(held, turned)) wrong("the range of rows goes past the end");
  return {first, count};
}

void check_length(size_t found, int64_t wanted, const char* name) {
  if (static_cast<int64_t>(found) != wanted) wrong(std::string(name) + " must have " + std::to_string(wanted) + " numbers, not " + std::to_string(found));
}

void bind_log_sums(const HeldCosts& held, bool turned, int64_t first, Vector h, double scale, VectorOut out, Pool& pool) {
  const Range range = checked(held, turned, first, static_cast<int64_t>(out.shape(0)));
  check_length(h.shape(0), rows_of(held, !turned), "h");
  nb::gil_scoped_release release;
  log_sums(*held.costs, turned, range, h.data(), scale, out.data(), pool);
}

void check_duals(const HeldCosts& held, bool turned, const Vector& u, const Vector& v) {
  check_length(u.shape(0), rows_of(held, turned), "u");
  check_length(v.shape(0), rows_of(held, !turned), "v");
}

void bind_plan_sums(const HeldCosts& held, bool turned, int64_t first, Vector u, Vector v, double scale, VectorOut mass, VectorOut spent,
                    Pool& pool) {
  const Range range = checked(held, turned, first, static_cast<int64_t>(mass.shape(0)));
  check_duals(held, turned, u, v);
  check_length(spent.shape(0), range.count, "spent");
  nb::gil_scoped_release release;
  plan_sums(*held.costs, turned, range, u.data(), v.data(), scale, mass.data(), spent.data(), pool);
}

void bind_plan_product(const HeldCosts& held, bool turned, int64_t first, Vector u, Vector v, double scale, Given x, MatrixOut out,
                       Pool& pool) {
  const Range range = checked(held, turned, first, static_cast<int64_t>(out.shape(0)));
  check_duals(held, turned, u, v);
  check_length(x.shape(0), rows_of(held, !turned), "x");
  check_length(out.shape(1), static_cast<int64_t>(x.shape(1)), "a row of the product");
  nb::gil_scoped_release release;
  plan_product(*held.costs, turned, range, u.data(), v.data(), scale, x.data(), static_cast<int64_t>(x.shape(1)), out.data(), pool);
}

void bind_plan_rows(const HeldCosts& held, bool turned, int64_t first, Vector u, Vector v, double scale, MatrixOut out, Pool& pool) {
  const Range range = checked(held, turned, first, static_cast<int64_t>(out.shape(0)));
  check_duals(held, turned, u, v);
  check_length(out.shape(1), rows_of(held, !turned), "a row of the plan");
  nb::gil_scoped_release release;
  plan_rows(*held.costs, turned, range, u.data(), v.data(), scale, out.data(), pool);
}

void bind_cost_rows(const HeldCosts& held, bool turned, int64_t first, MatrixOut out, Pool& pool) {
  const Range range = checked(held, turned, first, static_cast<int64_t>(out.shape(0)));
  check_length(out.shape(1), rows_of(held, !turned), "a row of costs");
  nb::gil_scoped_release release;
  cost_rows(*held.costs, turned, range, out.data(), pool);
}

void bind_products(Any a, Any b, MatrixOut out, Pool& pool) {
  const Points x = points_of(a), y = points_of(b);
  if (x.wide != y.wide || x.dim != y.dim) wrong("both sets of points must have one type and dimension");
  check_length(out.shape(0), x.count, "products of a point");
  check_length(out.shape(1), y.count, "a row of products");
  nb::gil_scoped_release release;
  point_products(active_transport(), x, y, out.data(), pool);
}

// Steps of a sweep; u or log_a and columns may be None.
bool bind_sweep(const HeldCosts& held, Vector q, Vector w, double scale, std::optional<Vector> log_a, double part, std::optional<Vector> u,
                VectorOut sums, std::optional<MatrixOut> columns, int64_t first, int64_t count, std::optional<MatrixOut> kernel,
                std::optional<VectorOut> tops, bool reuse, Pool& pool) {
  const int64_t n = held.costs->rows(), m = held.costs->cols();
  check_length(q.shape(0), m, "q");
  check_length(w.shape(0), m, "w");
  check_length(sums.shape(0), n, "sums");
  if (columns && !u && !log_a) wrong("sums of columns need u or log_a");
  if (u) check_length(u->shape(0), n, "u");
  if (log_a) check_length(log_a->shape(0), n, "log_a");
  if (columns) check_length(columns->shape(0), sweep_groups(n), "columns"), check_length(columns->shape(1), m, "a row of columns");
  if (first < 0 || count < 0) wrong("the steps of a sweep go past the end");
  if (kernel.has_value() != tops.has_value() || (reuse && !kernel)) wrong("a kernel is held with its tops");
  if (kernel) check_length(kernel->shape(0), n, "a kernel"), check_length(kernel->shape(1), m, "a row of a kernel"), check_length(tops->shape(0), n, "tops");
  const Sweep task{q.data(), w.data(), scale, log_a ? log_a->data() : nullptr, part, u ? u->data() : nullptr, sums.data(), columns ? columns->data() : nullptr};
  const HeldKernel held_kernel{kernel ? kernel->data() : nullptr, tops ? tops->data() : nullptr};
  nb::gil_scoped_release release;
  return sweep(*held.costs, task, first, count, held_kernel, reuse, pool);
}

}  // namespace

void bind_transport(nb::module_& module) {
  nb::class_<HeldCosts>(module, "Costs")
      .def("__init__", &hold_points, nb::arg("rows"), nb::arg("cols"), nb::arg("metric"), nb::arg("pool"))
      .def("__init__", &hold_matrix, nb::arg("matrix"))
      .def_prop_ro("shape", [](const HeldCosts& held) { return nb::make_tuple(held.costs->rows(), held.costs->cols()); })
      .def_prop_ro("kept", [](const HeldCosts& held) { return held.costs->kept(); });
  module.def("set_level", [](const std::string& level) { set_active_transport(transport_kernels(level_named(level))); });
  module.def("log_sums", &bind_log_sums);
  module.def("plan_sums", &bind_plan_sums);
  module.def("plan_product", &bind_plan_product);
  module.def("plan_rows", &bind_plan_rows);
  module.def("cost_rows", &bind_cost_rows);
  module.def("products", &bind_products);
  module.def("sweep", &bind_sweep, nb::arg("costs"), nb::arg("q"), nb::arg("w"), nb::arg("scale"), nb::arg("log_a").none(), nb::arg("part"),
             nb::arg("u").none(), nb::arg("sums"), nb::arg("columns").none(), nb::arg("first"), nb::arg("count"), nb::arg("kernel").none(), nb::arg("tops").none(),
             nb::arg("reuse"), nb::arg("pool"));
  module.def("sweep_groups", &sweep_groups);
  module.def("sweep_steps", &sweep_steps);
}
