// split: splitters that look at one character at a time. The published expressions are in patterns.cpp.
#include "text/split.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/pieces.h"
#include "unicode/unicode.h"

namespace weft::text {

namespace {

// Runs of characters of a class, at most `longest` and at least `shortest` of them, isolated from what lies between.
template <class InClass>
class Runs final : public Splitter {
 public:
  Runs(InClass in_class, size_t shortest, size_t longest) : in_(in_class), shortest_(shortest), longest_(longest) {}

  Piece take(std::string_view rest) const override {
    if (const size_t run = match(rest); run != 0) return {run};
    const char *start = rest.data(), *end = start + rest.size(), *p = start;
    do utf8::next(p);
    while (p < end && match({p, static_cast<size_t>(end - p)}) == 0);
    return {static_cast<size_t>(p - start)};
  }

 private:
  size_t match(std::string_view rest) const {  // bytes; 0 when no run starts here
    const char *p = rest.data(), *end = p + rest.size();
    size_t count = 0;
    while (p < end && count < longest_) {
      const char* next = p;
      if (!in_(utf8::next(next))) break;
      p = next;
      ++count;
    }
    return count >= shortest_ ? static_cast<size_t>(p - rest.data()) : 0;
  }

  InClass in_;
  size_t shortest_, longest_;
};

template <class InClass>
std::unique_ptr<Splitter> runs(InClass in_class, size_t shortest = 1, size_t longest = std::string_view::npos) {
  return std::make_unique<Runs<InClass>>(in_class, shortest, longest);
}

enum class Kind { space, single, first_run, second_run };

// White space goes; each character marked single stands alone; the other characters form runs of their kind. ASCII goes
// by table, for BERT's splitter is the hot one of its family.
template <class KindOf>
class Classes final : public Splitter {
 public:
  explicit Classes(KindOf kind_of) : kind_of_(kind_of) {
    for (char32_t c = 0; c < 128; ++c) ascii_[c] = kind_of(c);
  }

  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size(), *p = start;
    const Kind kind = next_kind(p);
    while (kind != Kind::single && p < end) {
      const char* next = p;
      if (next_kind(next) != kind) break;
      p = next;
    }
    return {static_cast<size_t>(p - start), kind != Kind::space};
  }

 private:
  Kind next_kind(const char*& p) const {
    const auto byte = static_cast<unsigned char>(*p);
    return byte < 128 ? (++p, ascii_[byte]) : kind_of_(utf8::next(p));
  }

  KindOf kind_of_;
  Kind ascii_[128];
};

template <class KindOf>
std::unique_ptr<Splitter> classes(KindOf kind_of) {
  return std::make_unique<Classes<KindOf>>(kind_of);
}

class Whole final : public Splitter {
 public:
  Piece take(std::string_view rest) const override { return {rest.size()}; }
};

class MarkedSpaces final : public Splitter {
 public:
  MarkedSpaces(Prefix prefix, bool cuts) : prefix_(prefix), cuts_(cuts) {}

  std::string_view prepare(std::string_view text, bool first, std::string& buffer) const override {
    const bool starts = text.starts_with(' ') || text.starts_with(kSpaceMark);
    buffer.clear();
    if (!starts && (prefix_ == Prefix::always || (prefix_ == Prefix::first && first))) buffer += kSpaceMark;
    for (size_t start = 0; start < text.size();) {
      const size_t space = std::min(text.find(' ', start), text.size());
      buffer += text.substr(start, space - start);
      if (space < text.size()) buffer += kSpaceMark;
      start = space + 1;
    }
    return buffer;
  }

  Piece take(std::string_view rest) const override {
    return {cuts_ ? std::min(rest.find(kSpaceMark, 1), rest.size()) : rest.size()};
  }

 private:
  Prefix prefix_;
  bool cuts_;
};

class BehindSpaces final : public Splitter {
 public:
  Piece take(std::string_view rest) const override {
    const size_t space = rest.find(' ');
    return {space == std::string_view::npos ? rest.size() : space + 1};
  }
};

bool is_number(char32_t c) { return has(c, kNumber); }
bool is_numeric(char32_t c) { return has(c, kNumeric); }
bool is_bert_punctuation(char32_t c) { return has(c, kBertPunctuation); }
bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_mark(char32_t c) {
  constexpr std::string_view kMore = "$+<=>^~|";
  return has(c, kPunctuation) || (c < 128 && kMore.find(static_cast<char>(c)) != std::string_view::npos);
}
bool is_ideograph(char32_t c) { return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF); }
Kind bert_kind(char32_t c) {
  const uint32_t flags = property(c).flags;
  return flags & kSpace ? Kind::space : flags & kBertPunctuation ? Kind::single : Kind::first_run;
}
Kind space_kind(char32_t c) { return has(c, kSpace) ? Kind::space : Kind::first_run; }
Kind word_kind(char32_t c) { return has(c, kSpace) ? Kind::space : has(c, kWord) ? Kind::first_run : Kind::second_run; }

}  // namespace

std::string_view Splitter::prepare(std::string_view text, bool, std::string& buffer) const {
  if (!prepend_space || text.front() == ' ') return text;
  buffer.assign(1, ' ');
  buffer += text;
  return buffer;
}

std::unique_ptr<Splitter> split_numbers(size_t longest) { return runs(is_number, 1, longest); }
std::unique_ptr<Splitter> split_digits(bool individual) {
  return individual ? runs(is_numeric, 1, 1) : runs(is_numeric);
}
std::unique_ptr<Splitter> split_punctuation() { return runs(is_bert_punctuation, 1, 1); }
std::unique_ptr<Splitter> split_marks() { return runs(is_mark); }
std::unique_ptr<Splitter> split_digit_triples() { return runs(is_ascii_digit, 3, 3); }
std::unique_ptr<Splitter> split_ideographs() { return runs(is_ideograph); }
std::unique_ptr<Splitter> split_bert() { return classes(bert_kind); }
std::unique_ptr<Splitter> split_spaces() { return classes(space_kind); }
std::unique_ptr<Splitter> split_words() { return classes(word_kind); }
std::unique_ptr<Splitter> split_marked_spaces(Prefix prefix, bool cuts) {
  return std::make_unique<MarkedSpaces>(prefix, cuts);
}
std::unique_ptr<Splitter> split_behind_spaces() { return std::make_unique<BehindSpaces>(); }
std::unique_ptr<Splitter> split_nothing() { return std::make_unique<Whole>(); }

}  // namespace weft::text
