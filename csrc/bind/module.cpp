// module: the Python extension. One bind_* function per area, each in its own file.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "core/error.h"

namespace nb = nanobind;

void bind_bench(nb::module_& module);
void bind_core(nb::module_& module);
void bind_pack(nb::module_& module);
void bind_quant(nb::module_& module);
void bind_text(nb::module_& module);
void bind_pair(nb::module_& module);
void bind_pictures(nb::module_& module);
void bind_tiny(nb::module_& module);
void bind_train(nb::module_& module);
void bind_transport(nb::module_& module);
void bind_vectors(nb::module_& module);

namespace {

const char* python_class(weft::ErrorKind kind) {
  switch (kind) {
    case weft::ErrorKind::input: return "InputError";
    case weft::ErrorKind::too_long: return "TooLongError";
    case weft::ErrorKind::shape: return "ShapeError";
    case weft::ErrorKind::format: return "FormatError";
    case weft::ErrorKind::unsupported: return "UnsupportedError";
    case weft::ErrorKind::weight: return "WeightError";
    case weft::ErrorKind::not_found: return "NotFoundError";
    case weft::ErrorKind::memory: return "MemoryPlanError";
    case weft::ErrorKind::backend: return "BackendError";
  }
  return "WeftError";
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const weft::Error& error) {
    nb::object type = nb::module_::import_("weft.errors").attr(python_class(error.kind));
    PyErr_SetObject(type.ptr(), nb::make_tuple(error.where, error.what()).ptr());
  }
}

}  // namespace

NB_MODULE(_core, module) {
#ifdef NDEBUG
  // A program that exits while one of its threads still runs keeps objects alive; that is not a leak to report.
  nb::set_leak_warnings(false);
#endif
  nb::register_exception_translator(translate);
  bind_core(module);
  nb::module_ bench = module.def_submodule("bench");
  bind_bench(bench);
  nb::module_ pack = module.def_submodule("pack");
  bind_pack(pack);
  nb::module_ pictures = module.def_submodule("pictures");
  bind_pictures(pictures);
  nb::module_ quant = module.def_submodule("quant");
  bind_quant(quant);
  nb::module_ text = module.def_submodule("text");
  bind_text(text);
  nb::module_ tiny = module.def_submodule("tiny");
  bind_tiny(tiny);
  nb::module_ train = module.def_submodule("train");
  bind_train(train);
  nb::module_ transport = module.def_submodule("transport");
  bind_transport(transport);
  nb::module_ vectors = module.def_submodule("vectors");
  bind_vectors(vectors);
  bind_pair(vectors);
}
