// charsmap: a walk of the double array takes one byte of text per step, so it ends whatever the table holds.
#include "unicode/charsmap.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "core/utf8.h"
#include "text/pieces.h"

namespace weft::text {

namespace {

constexpr size_t kMaxReplacement = 256;

bool is_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t offset(uint32_t unit) { return unit >> 10 << ((unit & 1 << 9) >> 6); }

[[noreturn]] void malformed(const std::string& what) { fail(ErrorKind::format, "charsmap", what); }

// Whether a character joins the grapheme before it. Close to Unicode's rule where a grapheme is under 6 bytes: no
// longer one is looked up whole.
bool joins(char32_t code) {
  if (code == 0x200C || code == 0x200D || code == 0xE33 || code == 0xEB3) return true;
  if (code == 0xFF9E || code == 0xFF9F || (code >= 0xE0020 && code <= 0xE007F)) return true;
  if (code >= 0x1F3FB && code <= 0x1F3FF) return true;  // skin tones
  if (!has(code, kMark)) return false;
  switch (code) {  // marks with a place of their own
    case 0x102B: case 0x102C: case 0x1038: case 0x1083: case 0x108F: case 0x1A61: case 0x1A63: case 0x1A64:
    case 0xAA7B: case 0xAA7D: case 0x11720: case 0x11721: return false;
    default: break;
  }
  return !((code >= 0x1062 && code <= 0x1064) || (code >= 0x1067 && code <= 0x106D) ||
           (code >= 0x1087 && code <= 0x108C) || (code >= 0x109A && code <= 0x109C));
}

// Control characters of Unicode's grapheme rule, which nothing joins: controls, separators of lines, format characters
// and the places kept free for more of them. Private characters are not among them.
bool stands_alone(char32_t code) {
  constexpr char32_t kRanges[][2] = {
      {0, 0x1F},         {0x7F, 0x9F},       {0xAD, 0xAD},       {0x61C, 0x61C},     {0x180E, 0x180E},
      {0x200B, 0x200B},  {0x200E, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},   {0xFEFF, 0xFEFF},
      {0xFFF0, 0xFFFB},  {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0000, 0xE001F},
      {0xE0080, 0xE00FF}, {0xE01F0, 0xE0FFF}};
  for (const auto& [low, high] : kRanges)
    if (code <= high) return code >= low;
  return false;
}

// Whether a character takes the one after it into its grapheme; those of 4 bytes make no grapheme under 6.
bool takes_next(char32_t code) {
  return (code >= 0x600 && code <= 0x605) || code == 0x6DD || code == 0x70F || code == 0x890 || code == 0x891 ||
         code == 0x8E2 || code == 0xD4E;
}

const char* grapheme_end(const char* p, const char* end) {
  char32_t first = utf8::next(p);
  while (takes_next(first) && p < end) {
    const char* q = p;
    first = utf8::next(q);
    if (stands_alone(first)) return p;
    p = q;
  }
  if (first == '\r' && p < end && *p == '\n') return p + 1;
  if (stands_alone(first)) return p;
  for (const char* q = p; q < end && joins(utf8::next(q));) p = q;
  return p;
}

class Precompiled final : public Normaliser {
 public:
  explicit Precompiled(Charsmap map) : map_(std::move(map)) {
    for (unsigned c = 0; c < 128; ++c) {
      const char text = static_cast<char>(c);
      plain_[c] = !map_.shortest({&text, 1});
    }
  }

  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    const size_t limit = growth_limit(text.size());
    out.reserve(out.size() + text.size());
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char* run = p;
      // ASCII that is followed by ASCII is a grapheme by itself.
      while (p + 1 < end && static_cast<unsigned char>(*p) < 128 && static_cast<unsigned char>(p[1]) < 128 &&
             plain_[static_cast<unsigned char>(*p)])
        ++p;
      out.append(run, p);
      for (const char* plain = run; trace && plain < p; ++plain) trace->character(1, 0);
      const char* behind = grapheme_end(p, end);
      append_grapheme({p, static_cast<size_t>(behind - p)}, out, trace);
      p = behind;
      check_growth(out.size(), limit);
    }
    return true;
  }

 private:
  void append_grapheme(std::string_view grapheme, std::string& out, Trace* trace) const {
    if (grapheme.size() < 6) {
      if (const auto match = map_.shortest(grapheme)) {
        append(grapheme, match->text, out, trace);
        return;
      }
    }
    for (const char *p = grapheme.data(), *end = p + grapheme.size(); p < end;) {
      const char* start = p;
      utf8::next(p);
      const std::string_view character(start, static_cast<size_t>(p - start));
      const auto match = map_.shortest(character);
      append(character, match ? match->text : character, out, trace);
    }
  }

  static void append(std::string_view from, std::string_view to, std::string& out, Trace* trace) {
    out += to;
    if (trace == nullptr) return;
    const int before = static_cast<int>(utf8::characters(from)), after = static_cast<int>(utf8::characters(to));
    if (after == 0) trace->drop(static_cast<size_t>(before));
    int i = 0;
    for (const char *p = to.data(), *end = p + to.size(); p < end; ++i) {
      const char* start = p;
      utf8::next(p);
      // As many as there were stand in their places; further ones are new, and the last stands for those missing.
      const int change = i >= before ? 1 : i + 1 == after && after < before ? after - before : 0;
      trace->character(static_cast<size_t>(p - start), change);
    }
  }

  Charsmap map_;
  bool plain_[128];
};

class Pieces final : public Normaliser {
 public:
  Pieces(Charsmap map, const PieceRules& rules, Trie kept)
      : map_(std::move(map)), rules_(rules), kept_(std::move(kept)) {}

  bool apply(std::string_view text, Place place, std::string& out, Trace* trace) const override {
    const size_t limit = growth_limit(text.size());
    const std::string_view space = rules_.escape ? kSpaceMark : " ";
    const size_t before = out.size();
    bool after_space = rules_.collapse && place.first, prefix = rules_.prefix && place.first;
    size_t spaces = 0;  // the space that `out` ends in, in bytes
    while (!text.empty()) {
      const size_t left = text.size(), written = out.size(), marked = prefix ? space.size() : 0;
      const std::string_view piece = take(text);
      for (const char c : piece) {
        const bool is_space = c == ' ';
        if (is_space && rules_.collapse && after_space) continue;
        if (prefix) out += space;
        prefix = false;
        if (is_space) out += space;
        else out.push_back(c);
        after_space = is_space;
        spaces = is_space ? space.size() : 0;
      }
      if (trace && out.size() == written) trace->skip(left - text.size());
      else if (trace) trace->put_before(marked), trace->replace(left - text.size(), out.size() - written - marked);
      check_growth(out.size(), limit);
    }
    if (rules_.collapse && place.last && spaces != 0 && out.size() - before >= spaces) out.resize(out.size() - spaces);
    return true;
  }

 private:
  // The replacement of the next entry or character, which it takes from the text.
  std::string_view take(std::string_view& text) const {
    if (const size_t kept = kept_.longest(text).size; kept != 0) {
      const std::string_view token = text.substr(0, kept);
      text.remove_prefix(kept);
      return token;
    }
    if (const auto match = map_.longest(text)) return text.remove_prefix(match->size), match->text;
    const char* p = text.data();
    utf8::next(p);
    const std::string_view character = text.substr(0, static_cast<size_t>(p - text.data()));
    text.remove_prefix(character.size());
    return character;
  }

  Charsmap map_;
  PieceRules rules_;
  Trie kept_;
};

}  // namespace

Charsmap::Charsmap(std::string_view table) {
  if (table.empty()) return;
  if (table.size() < 4) malformed("the table is too short: " + std::to_string(table.size()) + " bytes");
  const size_t size = load32(table.data());
  if (size % 4 != 0 || size == 0 || size > table.size() - 4)
    malformed("the trie is larger than the table: " + std::to_string(size) + " of " + std::to_string(table.size() - 4) + " bytes");
  units_.resize(size / 4);
  std::memcpy(units_.data(), table.data() + 4, size);
  replacements_ = table.substr(4 + size);
  if (utf8::first_malformed(replacements_) != replacements_.size()) malformed("a replacement is not UTF-8");
  for (size_t start = 0; start < replacements_.size();) {
    const size_t end = std::min(replacements_.find('\0', start), replacements_.size());
    if (end - start > kMaxReplacement) malformed("a replacement is too long: " + std::to_string(end - start));
    start = end + 1;
  }
}

std::string_view Charsmap::replacement(uint32_t at) const {
  if (at >= replacements_.size() || utf8::continues(static_cast<unsigned char>(replacements_[at])))
    malformed("the trie points outside the replacements: " + std::to_string(at));
  const std::string_view rest = std::string_view(replacements_).substr(at);
  return rest.substr(0, rest.find('\0'));
}

std::optional<Charsmap::Match> Charsmap::match(std::string_view text, bool first) const {
  std::optional<Match> found;
  if (units_.empty()) return found;
  size_t node = offset(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= units_.size() || label(units_[node]) != byte) return found;
    const uint32_t unit = units_[node];
    node ^= offset(unit);
    if (!is_leaf(unit)) continue;
    // A key that ends inside a character would leave half of it behind.
    if (i + 1 < text.size() && utf8::continues(static_cast<unsigned char>(text[i + 1]))) continue;
    if (node >= units_.size()) malformed("a leaf points outside the trie: " + std::to_string(node));
    found = Match{i + 1, replacement(value(units_[node]))};
    if (first) return found;
  }
  return found;
}

std::unique_ptr<Normaliser> precompiled_normaliser(Charsmap map) {
  return std::make_unique<Precompiled>(std::move(map));
}
std::unique_ptr<Normaliser> piece_normaliser(Charsmap map, const PieceRules& rules, Trie kept) {
  return std::make_unique<Pieces>(std::move(map), rules, std::move(kept));
}

}  // namespace weft::text
