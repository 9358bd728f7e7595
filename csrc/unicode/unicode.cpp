// unicode: table lookups; normalisation by decomposing, ordering marks and, for the composed forms, joining again.
#include "unicode/unicode.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "core/utf8.h"

namespace weft::text {

namespace {

#include "unicode/unicode_tables.inc"

constexpr size_t kBlock = 256;

// Hangul syllables compose by arithmetic (The Unicode Standard, section 3.12).
constexpr char32_t kSyllable = 0xAC00, kLead = 0x1100, kVowel = 0x1161, kTail = 0x11A7;
constexpr char32_t kLeads = 19, kVowels = 21, kTails = 28, kSyllables = kLeads * kVowels * kTails;

template <size_t N>
std::array<uint16_t, N + 1> running_sums(const uint8_t (&sizes)[N]) {
  std::array<uint16_t, N + 1> starts{};
  for (size_t i = 0; i < N; ++i) starts[i + 1] = static_cast<uint16_t>(starts[i] + sizes[i]);
  return starts;
}

struct Character {
  char32_t code;
  uint8_t order;
  int change = 0;  // as Trace::character() wants it
};

template <size_t N, class Starts>
bool decompose_by(char32_t code, const char32_t (&codes)[N], const Starts& starts, const char32_t* data,
                  std::vector<Character>& out) {
  const auto* found = std::lower_bound(std::begin(codes), std::end(codes), code);
  if (found == std::end(codes) || *found != code) return false;
  const auto i = static_cast<size_t>(found - codes);
  for (size_t k = starts[i]; k < starts[i + 1]; ++k)
    out.push_back({data[k], property(data[k]).order, k == starts[i] ? 0 : 1});
  return true;
}

void decompose(char32_t code, bool compatible, std::vector<Character>& out) {
  static const auto canonical_starts = running_sums(kCanonicalSize);
  static const auto compatible_starts = running_sums(kCompatibleSize);
  const Property& p = property(code);
  if (code - kSyllable < kSyllables) {
    const char32_t s = code - kSyllable;
    out.push_back({kLead + s / (kVowels * kTails), 0});
    out.push_back({kVowel + s / kTails % kVowels, 0, 1});
    if (s % kTails != 0) out.push_back({kTail + s % kTails, 0, 1});
    return;
  }
  if (compatible && (p.flags & kCompatible) &&
      decompose_by(code, kCompatiblePoints, compatible_starts, kCompatibleData, out))
    return;
  if ((p.flags & kCanonical) && decompose_by(code, kCanonicalPoints, canonical_starts, kCanonicalData, out)) return;
  out.push_back({code, p.order});
}

// Marks between two starters go in order of their class, equal classes keep their order.
void order_marks(std::vector<Character>& text) {
  for (size_t i = 0; i < text.size();) {
    if (text[i].order == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && text[end].order != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(end),
                     [](const Character& a, const Character& b) { return a.order < b.order; });
    i = end;
  }
}

char32_t joined(char32_t first, char32_t second) {  // 0 when the two do not compose
  if (first - kLead < kLeads && second - kVowel < kVowels)
    return kSyllable + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  if (first - kSyllable < kSyllables && (first - kSyllable) % kTails == 0 && second - kTail - 1 < kTails - 1)
    return first + (second - kTail);
  const auto* found = std::lower_bound(std::begin(kComposition), std::end(kComposition), std::pair{first, second},
                                       [](const char32_t(&row)[3], const std::pair<char32_t, char32_t>& key) {
                                         return std::pair{row[0], row[1]} < key;
                                       });
  return found != std::end(kComposition) && (*found)[0] == first && (*found)[1] == second ? (*found)[2] : 0;
}

void compose(std::vector<Character>& text) {
  size_t out = 0, starter = text.size();  // starter: where the last starter went; none yet
  for (size_t i = 0; i < text.size(); ++i) {
    const Character c = text[i];
    if (starter < out) {
      // A mark is blocked from its starter by a kept character of the same or a higher class.
      const bool blocked = out - 1 > starter && text[out - 1].order >= c.order;
      const char32_t whole = blocked ? 0 : joined(text[starter].code, c.code);
      if (whole != 0) {
        text[starter].code = whole;
        text[starter].change += c.change - 1;
        continue;
      }
    }
    if (c.order == 0) starter = out;
    text[out++] = c;
  }
  text.resize(out);
}

// Whether a text in which all characters are settled is in the form already, and any text splits before each of them.
bool settled(char32_t code, Form form) {
  constexpr uint32_t kCauses[] = {kUnstableNfc, kCanonical, kUnstableNfc | kCompatible, kCompatible};
  const Property& p = property(code);
  if (p.flags & kCauses[static_cast<size_t>(form)]) return false;
  const bool decomposes = form == Form::nfd || form == Form::nfkd;
  return !decomposes || (p.order == 0 && code - kSyllable >= kSyllables);
}

struct Span {
  const char *start, *end;
};

// The next stretch at or after `from` that has to be normalised: characters that are not settled, and the one before.
Span next_unsettled(const char* from, const char* end, Form form) {
  const char *p = from, *before = from;
  while (p < end) {
    const char* next = p + utf8::ascii_prefix(p, static_cast<size_t>(end - p));
    if (next != p) {
      before = next - 1;
      p = next;
      continue;
    }
    if (!settled(utf8::next(next), form)) break;
    before = p;
    p = next;
  }
  if (p == end) return {end, end};
  while (p < end) {
    const char* next = p;
    if (settled(utf8::next(next), form)) break;
    p = next;
  }
  return {before, p};
}

void normalise_span(Span span, Form form, std::vector<Character>& characters, std::string& out, Trace* trace) {
  characters.clear();
  const bool compatible = form == Form::nfkc || form == Form::nfkd;
  for (const char* p = span.start; p < span.end;) decompose(utf8::next(p), compatible, characters);
  order_marks(characters);
  if (form == Form::nfc || form == Form::nfkc) compose(characters);
  for (const Character& c : characters) {
    const size_t before = out.size();
    utf8::append(out, c.code);
    if (trace) trace->character(out.size() - before, c.change);
  }
}

}  // namespace

const Property& property(char32_t code) {
  const size_t block = std::min<size_t>(code / kBlock, std::size(kBlockOf) - 1);
  return kClasses[kClassOf[kBlockOf[block] * kBlock + code % kBlock]];
}

void append_lower(std::string& out, char32_t code) {
  if (code == 0x130) {
    out += "i\xCC\x87";
    return;
  }
  utf8::append(out, static_cast<char32_t>(static_cast<int32_t>(code) + property(code).lower));
}

bool is_cjk(char32_t code) {
  return (code >= 0x4E00 && code <= 0x9FFF) || (code >= 0x3400 && code <= 0x4DBF) ||
         (code >= 0x20000 && code <= 0x2A6DF) || (code >= 0x2A700 && code <= 0x2B81F) ||
         (code >= 0x2B920 && code <= 0x2CEAF) ||  // BERT's list starts here, not at 2B820
         (code >= 0xF900 && code <= 0xFAFF) || (code >= 0x2F800 && code <= 0x2FA1F);
}

bool normalise(std::string_view text, Form form, std::string& out, Trace* trace) {
  const char *p = text.data(), *end = p + text.size();
  Span span = next_unsettled(p, end, form);
  if (span.start == end) return false;
  out.reserve(out.size() + text.size() + text.size() / 8);
  std::vector<Character> characters;
  for (; span.start != end; span = next_unsettled(p, end, form)) {
    out.append(p, span.start);
    if (trace) trace->copy(static_cast<size_t>(span.start - p));
    normalise_span(span, form, characters, out, trace);
    p = span.end;
  }
  out.append(p, end);
  if (trace) trace->copy(static_cast<size_t>(end - p));
  return true;
}

}  // namespace weft::text
