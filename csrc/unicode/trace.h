// trace: where each byte of a rewritten text comes from.
//
// A step that rewrites a text records its changes in a Trace, from left to right. The rules are those of the tokenizers
// library, so that offsets agree with it: a character that takes the place of another has its origin, an inserted
// one has the origin of the character before it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace weft::text {

// The bytes of the original text that something comes from: whole characters.
struct Origin {
  uint32_t start, end;
};

// Each byte of `text`, which starts at byte `at` of the original, comes from its character.
void append_origins(std::string_view text, size_t at, std::vector<Origin>& out);

class Trace {
 public:
  // Starts a step that rewrites `text`, whose bytes come from `origins`.
  void begin(std::string_view text, const Origin* origins);
  const Origin* origins() const { return origins_; }
  const Origin* written() const { return written_.data(); }  // the origins of what was written

  void copy(size_t bytes);                      // the next bytes stay
  void skip(size_t bytes) { at_ += bytes; }     // the next bytes are dropped
  void replace(size_t bytes, size_t by);        // the next `bytes` become `by` bytes, which come from all of them
  void swap(size_t bytes, size_t by);           // the same, but they come from the last of them
  void put_before(size_t bytes);                // new bytes, which belong to the character that is next
  // One character of `bytes` bytes. It takes the place of the next one and -change more; or, where change is 1, of none.
  void character(size_t bytes, int change);
  // The next characters are dropped, and the last one written stands for them. (At the start of a text the library loses count
  // here, and all that follows is out by as much.)
  void drop(size_t characters);

  void release();  // frees the memory that an unusually long text made it allocate

 private:
  Origin here() const;
  void advance(size_t characters);

  std::string_view text_;
  const Origin* origins_ = nullptr;
  size_t at_ = 0;                // in the text, in bytes
  std::vector<Origin> written_;
  size_t last_ = 0;              // bytes of the last character written by character()
  int last_change_ = 0;
};

}  // namespace weft::text
