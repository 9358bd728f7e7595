#include "core/state.h"

#include <cstring>
#include <string>

#include "core/error.h"

namespace weft {

KvState::KvState(DType dtype, int64_t pages, int64_t heads, int64_t dim)
    : dtype(dtype), pages(pages), heads(heads), dim(dim),
      element_bytes(static_cast<int64_t>(bytes_of(dtype, static_cast<size_t>(dim * kPage)))),
      block_bytes(element_bytes + (dtype == DType::i8 ? kPage * static_cast<int64_t>(sizeof(float)) : 0)),
      key(static_cast<size_t>(pages) * half_page(), false), value(static_cast<size_t>(pages) * half_page(), false) {}

size_t KvState::place_of(int64_t page) const {
  if (page < 0 || page >= pages)
    fail(ErrorKind::input, "[state] no page " + std::to_string(page) + "; there are " + std::to_string(pages));
  return static_cast<size_t>(page) * half_page();
}

void KvState::check_size(size_t size) const {
  if (size != page_bytes())
    fail(ErrorKind::input, "[state] a page has " + std::to_string(page_bytes()) + " bytes, not " + std::to_string(size));
}

void KvState::read_page(int64_t page, std::byte* out, size_t size) const {
  const size_t place = place_of(page);
  check_size(size);
  std::memcpy(out, key.data() + place, half_page());
  std::memcpy(out + half_page(), value.data() + place, half_page());
}

void KvState::write_page(int64_t page, const std::byte* data, size_t size) {
  const size_t place = place_of(page);
  check_size(size);
  std::memcpy(key.data() + place, data, half_page());
  std::memcpy(value.data() + place, data + half_page(), half_page());
}

void KvState::copy_page(int64_t source, int64_t target) {
  const size_t from = place_of(source), to = place_of(target);
  if (from == to) return;
  std::memcpy(key.data() + to, key.data() + from, half_page());
  std::memcpy(value.data() + to, value.data() + from, half_page());
}

}  // namespace weft
