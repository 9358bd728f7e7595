// text: bindings of csrc/text. The Python face is weft/text/tokenizer.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "core/error.h"
#include "core/json.h"
#include "core/memory.h"
#include "text/tokenizer.h"

namespace nb = nanobind;
using namespace weft::text;

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32s = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// The UTF-8 of a Python string, which keeps it; the string must stay alive while the view is used.
std::string_view utf8_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_Check(text.ptr()) ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (data == nullptr) {
    PyErr_Clear();
    weft::fail(weft::ErrorKind::input, "encode", "a text cannot be encoded as UTF-8: got " +
                                           std::string(nb::repr(text.type()).c_str()) + "; pass a str without lone surrogates");
  }
  return {data, static_cast<size_t>(size)};
}

Parse parse_of(bool special, bool added) { return !added ? Parse::none : special ? Parse::all : Parse::ordinary; }

nb::list to_list(const Ids& ids) {
  nb::list out = nb::steal<nb::list>(PyList_New(static_cast<Py_ssize_t>(ids.size())));
  if (!out.is_valid()) nb::raise_python_error();
  for (size_t i = 0; i < ids.size(); ++i) {
    PyObject* number = PyLong_FromLong(ids[i]);
    if (number == nullptr) nb::raise_python_error();
    PyList_SET_ITEM(out.ptr(), static_cast<Py_ssize_t>(i), number);
  }
  return out;
}

nb::object to_array(Ids&& ids) {
  auto* owned = new Ids(std::move(ids));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Ids*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, int32_t, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

nb::list encode(const Tokenizer& self, nb::str text, bool add_special, bool parse_special, bool parse_added) {
  const std::string_view view = utf8_of(text);
  Ids ids;
  {
    nb::gil_scoped_release release;
    ids = self.encode(view, add_special, parse_of(parse_special, parse_added));
  }
  return to_list(ids);
}

nb::tuple encode_pair(const Tokenizer& self, nb::str first, nb::str second, bool add_special, bool parse_special) {
  const std::string_view a = utf8_of(first), b = utf8_of(second);
  Encoded encoded;
  {
    nb::gil_scoped_release release;
    encoded = self.encode_pair(a, b, add_special, parse_of(parse_special, true));
  }
  return nb::make_tuple(to_list(encoded.ids), to_list(encoded.types));
}

nb::object to_pairs(const std::vector<Origin>& origins) {
  auto* owned = new Ids;
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<Ids*>(p); });
  owned->reserve(origins.size() * 2);
  for (const Origin& origin : origins) {
    owned->push_back(static_cast<int32_t>(origin.start));
    owned->push_back(static_cast<int32_t>(origin.end));
  }
  return nb::cast(nb::ndarray<nb::numpy, int32_t, nb::ndim<2>>(owned->data(), {origins.size(), 2}, owner));
}

nb::tuple encode_located(const Tokenizer& self, nb::str first, std::optional<nb::str> second, bool add_special,
                         bool parse_special, bool characters) {
  const std::string_view a = utf8_of(first);
  const auto b = second ? std::optional(utf8_of(*second)) : std::nullopt;
  Encoded encoded;
  {
    nb::gil_scoped_release release;
    const Unit unit = characters ? Unit::characters : Unit::bytes;
    encoded = self.encode_located(a, b, add_special, parse_of(parse_special, true), unit);
  }
  return nb::make_tuple(to_list(encoded.ids), to_list(encoded.types), to_pairs(encoded.origins));
}

nb::list encode_batch(const Tokenizer& self, nb::list texts, bool add_special, bool parse_special, size_t threads) {
  std::vector<nb::object> alive;  // the list may change while the GIL is released
  std::vector<std::string_view> views;
  alive.reserve(texts.size());
  views.reserve(texts.size());
  for (const nb::handle text : texts) {
    alive.push_back(nb::borrow(text));
    views.push_back(utf8_of(text));
  }
  std::vector<Ids> encoded;
  {
    nb::gil_scoped_release release;
    encoded = self.encode_batch(views, add_special, parse_of(parse_special, true), threads);
  }
  nb::list out;
  for (Ids& ids : encoded) out.append(to_array(std::move(ids)));
  return out;
}

// String i is data[offsets[i] + skip : offsets[i + 1]]: GGUF has its length, eight bytes, before each.
std::vector<std::string_view> views_of(Bytes data, Offsets offsets, size_t skip, const char* what) {
  std::vector<std::string_view> out;
  const size_t count = offsets.size(), size = data.size();
  if (count == 0) return out;
  const uint64_t* at = offsets.data();
  out.reserve(count - 1);
  for (size_t i = 0; i + 1 < count; ++i) {
    if (at[i] > at[i + 1] || at[i + 1] > size || at[i + 1] - at[i] < skip)
      weft::fail(weft::ErrorKind::format,
                 "gguf", std::string("offsets out of range in ") + what + ": entry " + std::to_string(i));
    out.emplace_back(reinterpret_cast<const char*>(data.data()) + at[i] + skip, at[i + 1] - at[i] - skip);
  }
  return out;
}

std::unique_ptr<Tokenizer> gguf(const std::string& model, const std::string& pre, Bytes token_bytes,
                                Offsets token_offsets, size_t token_skip, Bytes merge_bytes, Offsets merge_offsets,
                                size_t merge_skip, Floats scores, Int32s types, Bytes charsmap, nb::dict numbers) {
  GgufVocab vocab;
  vocab.model = model;
  vocab.pre = pre;
  vocab.tokens = views_of(token_bytes, token_offsets, token_skip, "tokens");
  vocab.merges = views_of(merge_bytes, merge_offsets, merge_skip, "merges");
  vocab.scores.assign(scores.data(), scores.data() + scores.size());
  vocab.types.assign(types.data(), types.data() + types.size());
  vocab.charsmap = {reinterpret_cast<const char*>(charsmap.data()), charsmap.size()};
  const auto number = [&](const char* key, auto& into) {
    if (numbers.contains(key)) into = nb::cast<int32_t>(numbers[key]);
  };
  number("bos", vocab.bos);
  number("eos", vocab.eos);
  number("unk", vocab.unknown);
  number("cls", vocab.cls);
  number("sep", vocab.separator);
  number("add_bos", vocab.add_bos);
  number("add_eos", vocab.add_eos);
  number("add_space", vocab.add_space);
  number("collapse", vocab.collapse);
  nb::gil_scoped_release release;
  auto tokenizer = from_gguf(vocab);
  vocab = {};
  weft::return_freed_memory();
  return tokenizer;
}

std::unique_ptr<Tokenizer> vocab_file(nb::bytes text, bool lower, bool strip_accents, bool space_cjk,
                                      const std::string& unknown, const std::string& first,
                                      const std::string& separator, const std::vector<std::string>& special) {
  VocabFileOptions options;
  options.rules = {true, space_cjk, strip_accents, lower};
  options.unknown = unknown;
  options.first = first;
  options.separator = separator;
  options.special = special;
  return from_vocab_file({text.c_str(), text.size()}, options);
}

std::unique_ptr<Tokenizer> tiktoken(nb::bytes file, const std::string& pattern,
                                    const std::vector<std::pair<std::string, int64_t>>& special, int64_t first_id,
                                    int32_t bos, bool nfc) {
  nb::gil_scoped_release release;
  return from_tiktoken({file.c_str(), file.size()}, {pattern, special, first_id, bos, nfc});
}

nb::list special_ids(const Tokenizer& self) {
  nb::list out;
  for (int32_t id = 0; id < self.vocab().size(); ++id)
    if (self.is_special(id)) out.append(id);
  return out;
}

nb::list added_tokens(const Tokenizer& self) {
  nb::list out;
  for (const AddedToken& token : self.added()) out.append(nb::make_tuple(token.content, token.id, token.special));
  return out;
}

// (id, type) of each part around a text; the id is -1 for the first text and -2 for the second.
nb::list template_of(const Tokenizer& self, bool pair) {
  nb::list out;
  for (const Part& part : self.around(pair)) {
    const int32_t text = part.kind == Part::Kind::first ? -1 : -2;
    out.append(nb::make_tuple(part.kind == Part::Kind::token ? part.id : text, part.type));
  }
  return out;
}

nb::object token_of(const Tokenizer& self, int64_t id) {
  if (!self.vocab().has(id)) return nb::none();
  const std::string_view token = self.vocab().token(static_cast<int32_t>(id));
  return nb::str(token.data(), token.size());
}

nb::list token_bytes(const Tokenizer& self) {
  nb::list out;
  for (int32_t id = 0; id < self.vocab().size(); ++id) {
    const std::string bytes = self.bytes_of(id);
    out.append(nb::bytes(bytes.data(), bytes.size()));
  }
  return out;
}

nb::object id_of(const Tokenizer& self, nb::str token) {
  const int32_t id = self.vocab().find(utf8_of(token));
  return id == kNone ? nb::none() : nb::cast(id);
}

nb::str to_text(const std::string& text) { return nb::str(text.data(), text.size()); }

}  // namespace

void bind_text(nb::module_& module) {
  module.def("check_json", [](nb::bytes text, const std::string& where) {
    weft::json::parse({text.c_str(), text.size()}, where);
  });
  nb::class_<Tokenizer>(module, "Tokenizer")
      .def_static("from_json", [](nb::bytes text, const std::string& where, const Around& around) {
        nb::gil_scoped_release release;
        return from_json({text.c_str(), text.size()}, where, around);
      }, nb::arg("text"), nb::arg("where"), nb::arg("around") = nb::none())
      .def_static("from_sentencepiece", [](nb::bytes file, bool add_bos, bool add_eos) {
        nb::gil_scoped_release release;
        return from_sentencepiece({file.c_str(), file.size()}, add_bos, add_eos);
      })
      .def_static("from_vocab", &vocab_file)
      .def_static("from_gguf", &gguf)
      .def_static("from_tiktoken", &tiktoken)
      .def("encode", &encode)
      .def("encode_pair", &encode_pair)
      .def("encode_located", &encode_located, nb::arg("first"), nb::arg("second").none(), nb::arg("add_special"),
           nb::arg("parse_special"), nb::arg("characters"))
      .def("encode_batch", &encode_batch)
      .def("decode", [](const Tokenizer& self, Int32s ids, bool skip_special) {
        return to_text(self.decode(ids.data(), ids.size(), skip_special));
      })
      .def("stream", [](const Tokenizer& self, bool skip_special) { return Tokenizer::Stream(self, skip_special); },
           nb::keep_alive<0, 1>())
      .def("token", &token_of)
      .def("token_bytes", &token_bytes)
      .def("id", &id_of)
      .def("special_ids", &special_ids)
      .def("added_tokens", &added_tokens)
      .def("template", &template_of)
      .def_prop_ro("vocab_size", [](const Tokenizer& self) { return self.vocab().size(); });
  nb::class_<Tokenizer::Stream>(module, "Stream")
      .def("add", [](Tokenizer::Stream& self, int32_t id) { return to_text(self.add(id)); })
      .def("finish", [](Tokenizer::Stream& self) { return to_text(self.finish()); });
}
