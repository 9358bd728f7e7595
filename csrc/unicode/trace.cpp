// trace: a cursor in the text before, and an origin for each byte of the text after.
#include "unicode/trace.h"

#include <algorithm>

#include "core/utf8.h"

namespace weft::text {

void append_origins(std::string_view text, size_t at, std::vector<Origin>& out) {
  for (const char *start = text.data(), *p = start, *end = p + text.size(); p < end;) {
    const char* first = p;
    utf8::next(p);
    const auto from = at + static_cast<size_t>(first - start), size = static_cast<size_t>(p - first);
    out.insert(out.end(), size, Origin{static_cast<uint32_t>(from), static_cast<uint32_t>(from + size)});
  }
}

void Trace::begin(std::string_view text, const Origin* origins) {
  text_ = text;
  origins_ = origins;
  at_ = 0;
  last_ = 0;
  last_change_ = 0;
  written_.clear();
}

void Trace::copy(size_t bytes) {
  written_.insert(written_.end(), origins_ + at_, origins_ + at_ + bytes);
  at_ += bytes;
}

void Trace::replace(size_t bytes, size_t by) {
  if (bytes != 0) written_.insert(written_.end(), by, Origin{origins_[at_].start, origins_[at_ + bytes - 1].end});
  at_ += bytes;
}

void Trace::swap(size_t bytes, size_t by) {
  at_ += bytes;
  if (at_ != 0) written_.insert(written_.end(), by, origins_[at_ - 1]);
}

void Trace::put_before(size_t bytes) { written_.insert(written_.end(), bytes, here()); }

void Trace::character(size_t bytes, int change) {
  Origin origin = here();
  if (change > 0) origin = at_ == 0 ? Origin{origin.start, origin.start} : origins_[at_ - 1];
  else advance(static_cast<size_t>(1 - change));
  written_.insert(written_.end(), bytes, origin);
  last_ = bytes;
  last_change_ = change;
}

void Trace::drop(size_t characters) {
  if (last_change_ > 0) std::fill(written_.end() - static_cast<std::ptrdiff_t>(last_), written_.end(), here());
  last_change_ -= static_cast<int>(characters);
  advance(characters);
}

void Trace::release() {
  constexpr size_t kKept = 1 << 16;
  if (written_.capacity() > kKept) std::vector<Origin>().swap(written_);
}

Origin Trace::here() const { return text_.empty() ? Origin{0, 0} : origins_[std::min(at_, text_.size() - 1)]; }

void Trace::advance(size_t characters) {
  for (; characters > 0 && at_ < text_.size(); --characters)
    do ++at_;
    while (at_ < text_.size() && utf8::continues(static_cast<unsigned char>(text_[at_])));
}

}  // namespace weft::text
