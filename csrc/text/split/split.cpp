// split: splitters that look at one character at a time. The expressions are in expressions.cpp.
#include "text/split/split.h"

#include <algorithm>

#include "core/utf8.h"
#include "text/pieces.h"
#include "unicode/unicode.h"

namespace weft::text {

namespace {

// Runs of characters of a class, or each by itself, isolated from what lies between.
template <class InClass>
class ClassRuns final : public Splitter {
 public:
  ClassRuns(InClass in_class, bool individual) : in_(in_class), individual_(individual) {}

  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size(), *p = start;
    const bool inside = in_(utf8::next(p));
    for (const char* next = p; p < end && !(inside && individual_); p = next)
      if (in_(utf8::next(next)) != inside) break;
    return {static_cast<size_t>(p - start)};
  }

 private:
  InClass in_;
  bool individual_;
};

template <class InClass>
std::unique_ptr<Splitter> runs(InClass in_class, bool individual) {
  return std::make_unique<ClassRuns<InClass>>(in_class, individual);
}

enum class Kind { space, single, first_run, second_run };

// White space is dropped; each character marked single is its own piece; the others form runs of their kind. ASCII is looked
// up in a table, because BERT's splitter is the hot one of its family.
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

  std::string_view prepare(std::string_view text, bool first, std::string& buffer, Trace* trace) const override {
    const bool starts = text.starts_with(' ') || text.starts_with(kSpaceMark);
    buffer.clear();
    if (!starts && (prefix_ == Prefix::always || (prefix_ == Prefix::first && first))) buffer += kSpaceMark;
    if (trace) trace->put_before(buffer.size());
    for (size_t start = 0; start < text.size();) {
      const size_t space = std::min(text.find(' ', start), text.size());
      buffer += text.substr(start, space - start);
      if (space < text.size()) buffer += kSpaceMark;
      if (trace) trace->copy(space - start);
      if (trace && space < text.size()) trace->replace(1, kSpaceMark.size());
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

bool is_numeric(char32_t c) { return has(c, kNumeric); }
bool is_bert_punctuation(char32_t c) { return has(c, kBertPunctuation); }
Kind bert_kind(char32_t c) {
  const uint32_t flags = property(c).flags;
  return flags & kSpace ? Kind::space : flags & kBertPunctuation ? Kind::single : Kind::first_run;
}
Kind space_kind(char32_t c) { return has(c, kSpace) ? Kind::space : Kind::first_run; }
Kind word_kind(char32_t c) { return has(c, kSpace) ? Kind::space : has(c, kWord) ? Kind::first_run : Kind::second_run; }

}  // namespace

std::string_view Splitter::prepare(std::string_view text, bool, std::string& buffer, Trace* trace) const {
  if (!prepend_space || text.front() == ' ') return text;
  buffer.assign(1, ' ');
  buffer += text;
  if (trace) trace->put_before(1), trace->copy(text.size());
  return buffer;
}

std::unique_ptr<Splitter> split_digits(bool individual) { return runs(is_numeric, individual); }
std::unique_ptr<Splitter> split_punctuation(bool individual) { return runs(is_bert_punctuation, individual); }
std::unique_ptr<Splitter> split_bert() { return classes(bert_kind); }
std::unique_ptr<Splitter> split_spaces() { return classes(space_kind); }
std::unique_ptr<Splitter> split_words() { return classes(word_kind); }
std::unique_ptr<Splitter> split_marked_spaces(Prefix prefix, bool cuts) {
  return std::make_unique<MarkedSpaces>(prefix, cuts);
}
std::unique_ptr<Splitter> split_behind_spaces() { return std::make_unique<BehindSpaces>(); }
std::unique_ptr<Splitter> split_nothing() { return std::make_unique<Whole>(); }

}  // namespace weft::text
