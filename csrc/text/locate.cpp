// locate: where the tokens of a text lie in it.
#include <algorithm>

#include "core/utf8.h"
#include "text/tokenizer.h"

namespace weft::text {

namespace {

// Moves offsets in bytes to characters; each lies at the start of one or after the last.
void count_characters(std::string_view text, Origin* origins, size_t count) {
  if (utf8::ascii_prefix(text.data(), text.size()) == text.size()) return;
  std::vector<uint32_t> before(text.size() + 1);
  for (size_t i = 0; i < text.size(); ++i)
    before[i + 1] = before[i] + !utf8::continues(static_cast<unsigned char>(text[i]));
  for (Origin* origin = origins; origin < origins + count; ++origin)
    *origin = {before[origin->start], before[origin->end]};
}

bool is_space(char32_t code) { return code == 0x120 || has(code, kSpace); }  // U+0120: a space in the byte alphabet

size_t leading_spaces(std::string_view token) {
  size_t count = 0;
  for (const char *p = token.data(), *end = p + token.size(); p < end && is_space(utf8::next(p)); ++count) {
  }
  return count;
}

size_t trailing_spaces(std::string_view token) {
  size_t count = 0;
  for (size_t at = token.size(); at > 0; ++count) {
    do --at;
    while (utf8::continues(static_cast<unsigned char>(token[at])));
    const char* p = token.data() + at;
    if (!is_space(utf8::next(p))) break;
  }
  return count;
}

}  // namespace

Encoded Tokenizer::encode_located(std::string_view first, std::optional<std::string_view> second, bool add_special,
                                  Parse parse, Unit unit) const {
  Encoded out;
  const Lease work(*this);
  for (const Part& part : second ? parts_.pair : parts_.single) {
    const size_t before = out.ids.size();
    if (part.kind == Part::Kind::token) {
      if (add_special) out.ids.push_back(part.id), out.origins.push_back({0, 0});
    } else {
      // A template for one text may still call it the second.
      const std::string_view text = part.kind == Part::Kind::second && second ? *second : first;
      encode_plain(text, parse, *work, {out.ids, &out.origins, text, before});
      if (unit == Unit::characters) count_characters(text, out.origins.data() + before, out.ids.size() - before);
    }
    out.types.resize(out.ids.size(), part.type);
  }
  return out;
}

Origin Tokenizer::Traced::origin(size_t start, size_t end) const {
  if (text.empty()) return {0, 0};
  const size_t last = text.size() - 1;
  return {origins[std::min(start, last)].start, origins[std::min(std::max(end, start + 1) - 1, last)].end};
}

void Tokenizer::append_added(int32_t id, Traced token, Out out) const {
  out.ids.push_back(id);
  if (out.origins != nullptr) append_origin(token.origin(0, token.text.size()), token.text, out);
}

// `token`: its text, as it was found or as the vocabulary writes it, whose spaces the origin loses where they are to go.
void Tokenizer::append_origin(Origin origin, std::string_view token, Out out) const {
  if (parts_.trim.spaces) {
    const bool first = out.origins->size() == out.before || origin.start == 0;
    size_t leading = leading_spaces(token);
    if (leading == 1 && parts_.trim.prefix && first) leading = 0;  // it may have been inserted
    const auto inside = [&](uint32_t at) { return utf8::continues(static_cast<unsigned char>(out.text[at])); };
    for (; leading > 0 && origin.start < origin.end; --leading)
      do ++origin.start;
      while (origin.start < origin.end && inside(origin.start));
    for (size_t trailing = trailing_spaces(token); trailing > 0 && origin.end > origin.start; --trailing)
      do --origin.end;
      while (origin.end > origin.start && inside(origin.end));
  }
  out.origins->push_back(origin);
}

}  // namespace weft::text
