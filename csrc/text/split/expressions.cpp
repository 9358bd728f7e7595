// expressions: the regular expressions of Split pre-tokenizers. The published ones are known by their text; beyond them
// weft reads runs of one class of characters, such as \s?\p{L}+ or [0-9][0-9][0-9]. Anything else is refused.
#include <algorithm>
#include <bitset>
#include <optional>

#include "core/error.h"
#include "core/utf8.h"
#include "text/model.h"
#include "text/split/split.h"
#include "unicode/unicode.h"

namespace weft::text {

namespace {

// ---- one class of characters

struct CharClass {
  struct Range {
    char32_t first, last;
  };
  uint32_t flags = 0;
  std::vector<Range> ranges;

  bool contains(char32_t c) const {
    if (flags != 0 && has(c, flags)) return true;
    return std::any_of(ranges.begin(), ranges.end(), [c](Range r) { return c >= r.first && c <= r.last; });
  }
};

struct Runs {
  bool lead = false;  // \s? before it
  CharClass chars;
  size_t shortest = 1, longest = 1;
};

class ClassReader {
 public:
  explicit ClassReader(std::string_view text) : rest_(text) {}

  std::optional<Runs> runs() {
    Runs runs;
    runs.lead = take("\\s?");
    const std::string_view before = rest_;
    if (!(take("[") ? bracket(runs.chars) : property_class(runs.chars))) return std::nullopt;
    const std::string_view written = before.substr(0, before.size() - rest_.size());
    while (take(written)) ++runs.shortest;
    runs.longest = runs.shortest;
    if (take("+")) runs.longest = std::string_view::npos;
    else if (take("{1,")) {
      if (rest_.size() != 2 || rest_[0] < '1' || rest_[0] > '9' || rest_[1] != '}') return std::nullopt;
      runs.longest = static_cast<size_t>(rest_[0] - '0');
      rest_ = {};
    }
    if (!rest_.empty() || (runs.shortest > 1 && runs.longest != runs.shortest)) return std::nullopt;
    return runs;
  }

 private:
  bool take(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  bool property_class(CharClass& into) {
    static constexpr std::pair<std::string_view, uint32_t> kClasses[] = {
        {"\\p{L}", kLetter}, {"\\p{N}", kNumber}, {"\\p{P}", kPunctuation}, {"\\p{S}", kSymbol}, {"\\p{M}", kMark}};
    for (const auto& [name, flag] : kClasses)
      if (take(name)) return into.flags |= flag, true;
    return false;
  }

  // One character of a bracket, escaped or not; 0 when there is none.
  char32_t character() {
    if (rest_.empty() || rest_.front() == ']' || rest_.front() == '[') return 0;
    const bool escaped = take("\\");
    if (rest_.empty()) return 0;
    const char* p = rest_.data();
    const char32_t code = utf8::next(p);
    rest_.remove_prefix(static_cast<size_t>(p - rest_.data()));
    if (!escaped) return code;
    if (code == 'n') return '\n';
    if (code == 'r') return '\r';
    if (code == 't') return '\t';
    return code < 128 && has(code, kPunctuation | kSymbol) ? code : 0;
  }

  bool bracket(CharClass& into) {
    if (rest_.starts_with('^') || rest_.find("&&") != std::string_view::npos) return false;
    while (!take("]")) {
      if (property_class(into)) continue;
      const char32_t first = character();
      if (first == 0) return false;
      char32_t last = first;
      if (rest_.starts_with('-') && !rest_.starts_with("-]")) {
        rest_.remove_prefix(1);
        last = character();
      }
      if (last < first) return false;
      into.ranges.push_back({first, last});
    }
    return true;
  }

  std::string_view rest_;
};

class CharRuns final : public Splitter {
 public:
  explicit CharRuns(const Runs& runs) : runs_(runs) {
    for (char32_t c = 0; c < 128; ++c) ascii_[c] = runs.chars.contains(c);
  }

  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size(), *p = match(start, end);
    if (p == start)
      do utf8::next(p);
      while (p < end && match(p, end) == p);
    return {static_cast<size_t>(p - start)};
  }

 private:
  const char* match(const char* start, const char* end) const {
    if (runs_.lead) {
      const char* behind = start;
      if (has(utf8::next(behind), kSpace))
        if (const char* p = match_class(behind, end); p != behind) return p;
    }
    return match_class(start, end);
  }

  const char* match_class(const char* start, const char* end) const {
    const char* p = start;
    size_t count = 0;
    for (const char* next = p; p < end && count < runs_.longest; ++count, p = next) {
      const char32_t code = utf8::next(next);
      if (code < 128 ? !ascii_[code] : !runs_.chars.contains(code)) break;
    }
    return count >= runs_.shortest ? p : start;
  }

  Runs runs_;
  std::bitset<128> ascii_;
};

// The same after a ByteLevel pre-tokenizer: the characters are those of the byte alphabet, so bytes are cut.
class ByteRuns final : public Splitter {
 public:
  ByteRuns(const Runs& runs) : shortest_(runs.shortest), longest_(runs.longest) {
    for (unsigned byte = 0; byte < 256; ++byte)
      bytes_[byte] = runs.chars.contains(byte_alphabet::character(static_cast<unsigned char>(byte)));
  }

  Piece take(std::string_view rest) const override {
    size_t size = match(rest, 0);
    if (size == 0)
      do ++size;
      while (size < rest.size() && match(rest, size) == 0);
    return {size};
  }

 private:
  size_t match(std::string_view text, size_t from) const {
    size_t count = 0;
    while (count < longest_ && from + count < text.size() && bytes_[static_cast<unsigned char>(text[from + count])])
      ++count;
    return count >= shortest_ ? count : 0;
  }

  std::bitset<256> bytes_;
  size_t shortest_, longest_;
};

// \s+$ : white space up to the end of a line.
class SpacesAtEnd final : public Splitter {
 public:
  Piece take(std::string_view rest) const override {
    const char *start = rest.data(), *end = start + rest.size(), *p = start;
    while (p < end) {
      const char *run = p, *line_end = nullptr;
      for (const char* next = p; p < end && has(utf8::next(next), kSpace); p = next)
        if (*p == '\n' && p != run) line_end = p;
      if (p == end && p != run) line_end = end;
      if (line_end != nullptr) return {static_cast<size_t>((run == start ? line_end : run) - start)};
      if (p < end) utf8::next(p);
    }
    return {rest.size()};
  }
};

// ---- the published ones

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPERISH "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWERISH "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define LEAD "[^\\r\\n\\p{L}\\p{N}]?"

struct Known {
  std::string_view expression;
  Pattern pattern;
};

// All but DeepSeek's match every character of any text.
constexpr Known kKnown[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", Pattern::gpt2},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", Pattern::gpt2},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}++| ?\\p{N}++| ?[^\\s\\p{L}\\p{N}]++|\\s++$|\\s+(?!\\S)|\\s", Pattern::gpt2},
    {CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, Pattern::llama3},
    {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}++|\\p{N}{1,3}+| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*+|\\s++$|\\s*[\\r\\n]|"
     "\\s+(?!\\S)|\\s",
     Pattern::cl100k},
    {CONTRACTIONS "|" LEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES, Pattern::qwen2},
    {CONTRACTIONS "|" LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES, Pattern::qwen35},
    {LEAD UPPERISH "*" LOWERISH "+" CONTRACTIONS "?|" LEAD UPPERISH "+" LOWERISH "*" CONTRACTIONS
     "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     Pattern::o200k},
    {LEAD UPPERISH "*" LOWERISH "+|" LEAD UPPERISH "+" LOWERISH "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES,
     Pattern::tekken},
    {"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
     "[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
     Pattern::deepseek_words},
};

}  // namespace

std::unique_ptr<Splitter> split_by_expression(std::string_view expression, const Expression& use) {
  for (const Known& known : kKnown) {
    if (known.expression != expression || use.behind_bytes) continue;
    const bool total = known.pattern != Pattern::deepseek_words, dialect = known.pattern == Pattern::cl100k;
    if ((total || !use.matches_only) && (use.tiktoken || !dialect)) return split_by(known.pattern);
  }
  if (!use.matches_only) {
    if (expression == "\\s+$" && !use.behind_bytes) return std::make_unique<SpacesAtEnd>();
    const std::optional<Runs> runs = ClassReader(expression).runs();
    if (runs && !use.behind_bytes) return std::make_unique<CharRuns>(*runs);
    if (runs && !runs->lead) return std::make_unique<ByteRuns>(*runs);
  }
  fail(ErrorKind::unsupported, "tokenizer", "weft does not support this Split expression: " + std::string(expression));
}

std::unique_ptr<Splitter> split_byte_digits(bool individual) {
  Runs runs;
  runs.chars.flags = kNumeric;
  runs.longest = individual ? 1 : std::string_view::npos;
  return std::make_unique<ByteRuns>(runs);
}

}  // namespace weft::text
