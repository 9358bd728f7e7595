// normalise: one small class per kind. BERT's does its four jobs in one pass, with ASCII by table.
#include "unicode/normalise.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace weft::text {

namespace {

constexpr size_t kMaxGrowth = 32;  // U+FDFA, the worst of Unicode, grows elevenfold

class Bert final : public Normaliser {
 public:
  explicit Bert(const BertRules& rules) : rules_(rules) {
    for (unsigned c = 0; c < 128; ++c) ascii_[c] = ascii(c);
  }

  bool apply(std::string_view text, Place, std::string& out) const override {
    const char *p = text.data(), *end = p + text.size();
    out.reserve(out.size() + text.size());
    while (p < end) {
      // Accents attach to what stands before them and ASCII never decomposes, so a run that is not ASCII can be taken
      // by itself.
      const size_t run = utf8::ascii_prefix(p, static_cast<size_t>(end - p));
      append_ascii({p, run}, out);
      p += run;
      const char* foreign = p;
      while (p < end && static_cast<unsigned char>(*p) >= 0x80) ++p;
      if (p != foreign) append_foreign({foreign, static_cast<size_t>(p - foreign)}, out);
    }
    return true;
  }

 private:
  static constexpr char kDrop = '\x80';

  char ascii(unsigned c) const {
    if (rules_.clean && has(c, kBertControl)) return kDrop;
    if (rules_.clean && has(c, kSpace)) return ' ';
    return static_cast<char>(rules_.lower && c >= 'A' && c <= 'Z' ? c + 32 : c);
  }

  void append_ascii(std::string_view text, std::string& out) const {
    const size_t before = out.size();
    out.resize(before + text.size());
    char* to = out.data() + before;
    for (const char c : text) {
      const char mapped = ascii_[static_cast<unsigned char>(c)];
      *to = mapped;
      to += mapped != kDrop;
    }
    out.resize(static_cast<size_t>(to - out.data()));
  }

  void append_foreign(std::string_view text, std::string& out) const {
    std::string cleaned, decomposed;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) append_clean(utf8::next(p), cleaned);
    std::string_view source = cleaned;
    if (rules_.strip_accents && normalise(cleaned, Form::nfd, decomposed)) source = decomposed;
    for (const char *p = source.data(), *end = p + source.size(); p < end;) {
      const char32_t code = utf8::next(p);
      if (rules_.strip_accents && has(code, kBertAccent)) continue;
      if (rules_.lower) append_lower(out, code);
      else utf8::append(out, code);
    }
  }

  void append_clean(char32_t code, std::string& out) const {
    if (rules_.clean && has(code, kBertControl)) return;
    if (rules_.clean && has(code, kSpace)) out.push_back(' ');
    else if (rules_.space_cjk && is_cjk(code)) out.push_back(' '), utf8::append(out, code), out.push_back(' ');
    else utf8::append(out, code);
  }

  BertRules rules_;
  char ascii_[128];
};

class ToForm final : public Normaliser {
 public:
  explicit ToForm(Form form) : form_(form) {}
  bool apply(std::string_view text, Place, std::string& out) const override { return normalise(text, form_, out); }

 private:
  Form form_;
};

class Lowercase final : public Normaliser {
 public:
  bool apply(std::string_view text, Place, std::string& out) const override {
    out.reserve(out.size() + text.size());
    for (const char *p = text.data(), *end = p + text.size(); p < end;) append_lower(out, utf8::next(p));
    return true;
  }
};

class StripAccents final : public Normaliser {
 public:
  bool apply(std::string_view text, Place, std::string& out) const override {
    out.reserve(out.size() + text.size());
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char32_t code = utf8::next(p);
      if (!has(code, kCombining)) utf8::append(out, code);
    }
    return true;
  }
};

class Strip final : public Normaliser {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string_view text, Place, std::string& out) const override {
    const char *p = text.data(), *end = p + text.size();
    for (const char* q = p; left_ && q < end && has(utf8::next(q), kSpace);) p = q;
    while (right_ && p < end) {
      const char* last = end - 1;
      while (utf8::continues(static_cast<unsigned char>(*last))) --last;
      const char* q = last;
      if (!has(utf8::next(q), kSpace)) break;
      end = last;
    }
    out.append(p, end);
    return true;
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normaliser {
 public:
  explicit Prepend(std::string_view text) : text_(text) {}
  bool apply(std::string_view text, Place, std::string& out) const override {
    if (text.empty()) return false;
    out += text_;
    out += text;
    return true;
  }

 private:
  std::string text_;
};

class Replace final : public Normaliser {
 public:
  Replace(std::string_view from, std::string_view to) : from_(from), to_(to) {}
  bool apply(std::string_view text, Place, std::string& out) const override {
    size_t found = text.find(from_);
    if (found == std::string_view::npos) return false;
    size_t start = 0;
    for (; found != std::string_view::npos; found = text.find(from_, start)) {
      out += text.substr(start, found - start);
      out += to_;
      start = found + from_.size();
    }
    out += text.substr(start);
    return true;
  }

 private:
  std::string from_, to_;
};

class SpaceRuns final : public Normaliser {
 public:
  explicit SpaceRuns(std::string_view to) : to_(to) {}
  bool apply(std::string_view text, Place, std::string& out) const override {
    size_t found = text.find("  ");
    if (found == std::string_view::npos) return false;
    size_t start = 0;
    for (; found != std::string_view::npos; found = text.find("  ", start)) {
      out += text.substr(start, found - start);
      out += to_;
      start = std::min(text.find_first_not_of(' ', found), text.size());
    }
    out += text.substr(start);
    return true;
  }

 private:
  std::string to_;
};

}  // namespace

std::unique_ptr<Normaliser> bert_normaliser(const BertRules& rules) { return std::make_unique<Bert>(rules); }
std::unique_ptr<Normaliser> form_normaliser(Form form) { return std::make_unique<ToForm>(form); }
std::unique_ptr<Normaliser> lowercase_normaliser() { return std::make_unique<Lowercase>(); }
std::unique_ptr<Normaliser> strip_accents_normaliser() { return std::make_unique<StripAccents>(); }
std::unique_ptr<Normaliser> strip_normaliser(bool left, bool right) { return std::make_unique<Strip>(left, right); }
std::unique_ptr<Normaliser> prepend_normaliser(std::string_view text) { return std::make_unique<Prepend>(text); }
std::unique_ptr<Normaliser> replace_normaliser(std::string_view from, std::string_view to) {
  return std::make_unique<Replace>(from, to);
}
std::unique_ptr<Normaliser> space_run_normaliser(std::string_view to) { return std::make_unique<SpaceRuns>(to); }

size_t growth_limit(size_t size) { return size * kMaxGrowth + 65'536; }

void check_growth(size_t size, size_t limit) {
  if (size > limit) fail(ErrorKind::too_long, "[encode] normalising makes a text too long: " + std::to_string(size));
}

std::string_view NormaliserChain::apply(std::string_view text, Place place, std::array<std::string, 2>& buffers) const {
  const size_t limit = growth_limit(text.size());
  size_t next = 0;
  for (const auto& step : steps_) {
    buffers[next].clear();
    if (!step->apply(text, place, buffers[next])) continue;
    text = buffers[next];
    check_growth(text.size(), limit);
    next ^= 1;
  }
  return text;
}

}  // namespace weft::text
