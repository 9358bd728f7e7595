// patterns: the regular expressions of published byte-level tokenizers, each matched by hand in one pass.
//
// Their texts are in expressions.cpp.
#include <array>

#include "core/utf8.h"
#include "text/split/split.h"
#include "unicode/unicode.h"

namespace weft::text {

namespace {

struct Char {
  char32_t code = 0;
  uint32_t flags = 0;
  const char* end = nullptr;  // one past the character; nullptr past the end of the text
  bool is(uint32_t wanted) const { return (flags & wanted) != 0; }
};

// Flags of ASCII without the walk through the two-stage table.
const std::array<uint32_t, 128>& ascii_flags() {
  static const std::array<uint32_t, 128> table = [] {
    std::array<uint32_t, 128> flags{};
    for (char32_t c = 0; c < 128; ++c) flags[c] = property(c).flags;
    return flags;
  }();
  return table;
}

class Reader : public Splitter {
 protected:
  Char at(const char* p, const char* end) const {
    if (p >= end) return {};
    const auto byte = static_cast<unsigned char>(*p);
    if (byte < 128) return {byte, ascii_[byte], p + 1};
    const char32_t code = utf8::next(p);
    return {code, property(code).flags, p};
  }

  // Past the characters that have one of the flags.
  const char* run(const char* p, const char* end, uint32_t flags) const {
    while (p < end) {
      const Char c = at(p, end);
      if (!c.is(flags)) break;
      p = c.end;
    }
    return p;
  }

  // Past the characters that have none of the flags.
  const char* run_without(const char* p, const char* end, uint32_t flags) const {
    while (p < end) {
      const Char c = at(p, end);
      if (c.is(flags)) break;
      p = c.end;
    }
    return p;
  }

  // \s+(?!\S)|\s+ : white space leaves its last character to the word after it, unless it is the only one.
  const char* spaces(const char* p, const char* end) const {
    const char *last = p, *stop = p;
    while (stop < end) {
      const Char c = at(stop, end);
      if (!c.is(kSpace)) break;
      last = stop;
      stop = c.end;
    }
    return stop < end && last > p ? last : stop;
  }

  // \s*[\r\n]+ : up to the last line break in the white space here; nullptr when there is none.
  const char* line_breaks(const char* p, const char* end) const {
    const char* found = nullptr;
    while (p < end) {
      const Char c = at(p, end);
      if (!c.is(kSpace)) break;
      p = c.end;
      if (c.code == '\r' || c.code == '\n') found = p;
    }
    return found;
  }

  static const char* skip(const char* p, const char* end, std::string_view any) {
    while (p < end && any.find(*p) != std::string_view::npos) ++p;
    return p;
  }

  // 's 't 're 've 'm 'll 'd at p; nullptr when there is none. Folding case also takes the long s, U+017F.
  static const char* contraction(const char* p, const char* end, bool fold) {
    if (p >= end || *p != '\'' || p + 1 >= end) return nullptr;
    const auto letter = [&](const char* q) -> char {
      if (q >= end) return 0;
      return fold && *q >= 'A' && *q <= 'Z' ? static_cast<char>(*q + 32) : *q;
    };
    const char first = letter(p + 1), second = letter(p + 2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return p + 3;
    if (first == 'l' && second == 'l') return p + 3;
    if (fold && end - p >= 3 && p[1] == '\xC5' && p[2] == '\xBF') return p + 3;
    return nullptr;
  }

 private:
  const std::array<uint32_t, 128>& ascii_ = ascii_flags();
};

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
class Gpt2 final : public Reader {
 public:
  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size();
    return {static_cast<size_t>(stop(start, end) - start)};
  }

 private:
  const char* stop(const char* start, const char* end) const {
    if (const char* p = contraction(start, end, false)) return p;
    Char c = at(start, end);
    if (c.code == ' ' && c.end < end) c = at(c.end, end);
    if (c.is(kLetter)) return run(c.end, end, kLetter);
    if (c.is(kNumber)) return run(c.end, end, kNumber);
    if (!c.is(kSpace)) return run_without(c.end, end, kSpace | kLetter | kNumber);
    return spaces(start, end);
  }
};

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|...
class Llama3 final : public Reader {
 public:
  // `whole_end`: white space at the end of the text is one piece, line breaks or not (\s++$ before \s*[\r\n]).
  Llama3(uint32_t letters, size_t digits, bool whole_end) : letters_(letters), digits_(digits), whole_end_(whole_end) {}

  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size();
    return {static_cast<size_t>(stop(start, end) - start)};
  }

 private:
  const char* stop(const char* start, const char* end) const {
    if (const char* p = contraction(start, end, true)) return p;
    Char c = at(start, end);
    if (c.is(letters_)) return run(c.end, end, letters_);
    if (c.is(kNumber)) return numbers(start, end);
    const Char next = at(c.end, end);
    if (next.is(letters_) && c.code != '\r' && c.code != '\n') return run(next.end, end, letters_);
    if (c.code == ' ' && next.end != nullptr) c = next;
    const uint32_t others = kSpace | kNumber | letters_;
    if (!c.is(others)) return skip(run_without(c.end, end, others), end, "\r\n");
    if (whole_end_ && run(start, end, kSpace) == end) return end;
    if (const char* p = line_breaks(start, end)) return p;
    return spaces(start, end);
  }

  const char* numbers(const char* p, const char* end) const {
    for (size_t i = 0; i < digits_ && p < end; ++i) {
      const Char c = at(p, end);
      if (!c.is(kNumber)) break;
      p = c.end;
    }
    return p;
  }

  uint32_t letters_;
  size_t digits_;
  bool whole_end_;
};

// As Llama3, but words change at a capital: UPPERISH* LOWERISH+ or UPPERISH+ LOWERISH*, with the contraction after them.
// Tekken, Mistral's, knows no contractions and takes digits one by one.
class O200k final : public Reader {
 public:
  O200k(bool contractions, int digits) : contractions_(contractions), digits_(digits) {}

  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size();
    return {static_cast<size_t>(stop(start, end) - start)};
  }

 private:
  const char* stop(const char* start, const char* end) const {
    const Char c = at(start, end);
    const bool may_lead = !c.is(kLetter | kNumber) && c.code != '\r' && c.code != '\n';
    const char* word = nullptr;
    if (may_lead) word = small_word(c.end, end);
    if (word == nullptr) word = small_word(start, end);
    if (word == nullptr && may_lead) word = capital_word(c.end, end);
    if (word == nullptr) word = capital_word(start, end);
    if (word != nullptr) {
      const char* p = contractions_ ? contraction(word, end, true) : nullptr;
      return p != nullptr ? p : word;
    }
    return other(c, start, end);
  }

  // UPPERISH*LOWERISH+ : the capitals give back what they took beyond the last character that is both.
  const char* small_word(const char* p, const char* end) const {
    const char* last_both = nullptr;
    while (p < end) {
      const Char c = at(p, end);
      if (!c.is(kUpperish)) break;
      p = c.end;
      if (c.is(kLowerish)) last_both = p;
    }
    const char* lower = run(p, end, kLowerish);
    return lower != p ? lower : last_both;
  }

  const char* capital_word(const char* p, const char* end) const {
    const char* upper = run(p, end, kUpperish);
    return upper != p ? run(upper, end, kLowerish) : nullptr;
  }

  const char* other(Char c, const char* start, const char* end) const {
    if (c.is(kNumber)) {
      const char* p = c.end;
      for (int i = 1; i < digits_ && p < end && at(p, end).is(kNumber); ++i) p = at(p, end).end;
      return p;
    }
    constexpr uint32_t kOthers = kSpace | kLetter | kNumber;
    if (c.code == ' ' && c.end < end) c = at(c.end, end);
    if (!c.is(kOthers)) return skip(run_without(c.end, end, kOthers), end, "\r\n/");
    if (const char* p = line_breaks(start, end)) return p;
    return spaces(start, end);
  }

  bool contractions_;
  int digits_;
};

// [!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
// Characters that match nothing form pieces of their own.
class DeepseekWords final : public Reader {
 public:
  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size();
    const char* p = match(start, end);
    if (p == nullptr) {
      p = at(start, end).end;
      while (p < end && match(p, end) == nullptr) p = at(p, end).end;
    }
    return {static_cast<size_t>(p - start)};
  }

 private:
  static bool is_ascii_letter(char32_t c) { return (c | 32) - 'a' < 26; }

  const char* match(const char* start, const char* end) const {
    constexpr uint32_t kWordLetters = kLetter | kMark, kMarks = kPunctuation | kSymbol;
    Char c = at(start, end);
    const Char next = at(c.end, end);
    if (c.code < 128 && c.is(kMarks) && next.end != nullptr && is_ascii_letter(next.code)) {
      const char* p = next.end;
      while (p < end && is_ascii_letter(static_cast<unsigned char>(*p))) ++p;
      return p;
    }
    const bool may_lead = !c.is(kLetter | kMarks) && c.code != '\r' && c.code != '\n';
    if (may_lead && next.is(kWordLetters)) return run(next.end, end, kWordLetters);
    if (c.is(kWordLetters)) return run(c.end, end, kWordLetters);
    if (c.is(kMarks)) return skip(run(c.end, end, kMarks), end, "\r\n");
    if (c.code == ' ' && next.is(kMarks)) return skip(run(next.end, end, kMarks), end, "\r\n");
    if (!c.is(kSpace)) return nullptr;
    if (const char* p = line_breaks(start, end)) return p;
    return spaces(start, end);
  }
};

}  // namespace

std::unique_ptr<Splitter> split_by(Pattern pattern) {
  switch (pattern) {
    case Pattern::gpt2: return std::make_unique<Gpt2>();
    case Pattern::llama3: return std::make_unique<Llama3>(kLetter, 3, false);
    case Pattern::cl100k: return std::make_unique<Llama3>(kLetter, 3, true);
    case Pattern::qwen2: return std::make_unique<Llama3>(kLetter, 1, false);
    case Pattern::qwen35: return std::make_unique<Llama3>(kLetter | kMark, 1, false);
    case Pattern::o200k: return std::make_unique<O200k>(true, 3);
    case Pattern::tekken: return std::make_unique<O200k>(false, 1);
    case Pattern::deepseek_words: return std::make_unique<DeepseekWords>();
  }
  return nullptr;
}

}  // namespace weft::text
