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

  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    if (trace) return apply_traced(text, out, *trace);
    const char *p = text.data(), *end = p + text.size();
    out.reserve(out.size() + text.size());
    while (p < end) {
      // Accents attach to the character before them and ASCII never decomposes, so a run that is not ASCII can be
      // processed on its own.
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

  // The same in three passes, each of which a trace can follow.
  bool apply_traced(std::string_view text, std::string& out, Trace& trace) const {
    std::string cleaned, decomposed;
    Trace first, second;
    first.begin(text, trace.origins());
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char* start = p;
      const size_t before = cleaned.size();
      append_clean(utf8::next(p), cleaned);
      first.replace(static_cast<size_t>(p - start), cleaned.size() - before);
    }
    std::string_view source = cleaned;
    second.begin(source, first.written());
    if (rules_.strip_accents && normalise(source, Form::nfd, decomposed, &second)) source = decomposed;
    trace.begin(source, source.data() == cleaned.data() ? first.written() : second.written());
    for (const char *p = source.data(), *end = p + source.size(); p < end;) {
      const char* start = p;
      const char32_t code = utf8::next(p);
      const size_t before = out.size();
      if (!rules_.strip_accents || !has(code, kBertAccent))
        rules_.lower ? append_lower(out, code) : utf8::append(out, code);
      trace.replace(static_cast<size_t>(p - start), out.size() - before);
    }
    return true;
  }

  BertRules rules_;
  char ascii_[128];
};

class ToForm final : public Normaliser {
 public:
  explicit ToForm(Form form) : form_(form) {}
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    return normalise(text, form_, out, trace);
  }

 private:
  Form form_;
};

class Lowercase final : public Normaliser {
 public:
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    out.reserve(out.size() + text.size());
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char* start = p;
      const size_t before = out.size();
      append_lower(out, utf8::next(p));
      if (trace) trace->replace(static_cast<size_t>(p - start), out.size() - before);
    }
    return true;
  }
};

class StripAccents final : public Normaliser {
 public:
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    out.reserve(out.size() + text.size());
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char* start = p;
      const bool goes = has(utf8::next(p), kCombining);
      if (!goes) out.append(start, p);
      const auto size = static_cast<size_t>(p - start);
      if (trace) goes ? trace->skip(size) : trace->copy(size);
    }
    return true;
  }
};

class Strip final : public Normaliser {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
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
    if (trace) trace->skip(static_cast<size_t>(p - text.data())), trace->copy(static_cast<size_t>(end - p));
    return true;
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normaliser {
 public:
  explicit Prepend(std::string_view text) : text_(text) {}
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    if (text.empty()) return false;
    out += text_;
    out += text;
    if (trace) trace->put_before(text_.size()), trace->copy(text.size());
    return true;
  }

 private:
  std::string text_;
};

class Replace final : public Normaliser {
 public:
  Replace(std::string_view from, std::string_view to) : from_(from), to_(to) {}
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    size_t found = text.find(from_);
    if (found == std::string_view::npos) return false;
    size_t start = 0;
    for (; found != std::string_view::npos; found = text.find(from_, start)) {
      out += text.substr(start, found - start);
      out += to_;
      if (trace) trace->copy(found - start), trace->swap(from_.size(), to_.size());
      start = found + from_.size();
    }
    out += text.substr(start);
    if (trace) trace->copy(text.size() - start);
    return true;
  }

 private:
  std::string from_, to_;
};

class SpaceRuns final : public Normaliser {
 public:
  explicit SpaceRuns(std::string_view to) : to_(to) {}
  bool apply(std::string_view text, Place, std::string& out, Trace* trace) const override {
    size_t found = text.find("  ");
    if (found == std::string_view::npos) return false;
    size_t start = 0;
    for (; found != std::string_view::npos; found = text.find("  ", start)) {
      out += text.substr(start, found - start);
      out += to_;
      const size_t end = std::min(text.find_first_not_of(' ', found), text.size());
      if (trace) trace->copy(found - start), trace->swap(end - found, to_.size());
      start = end;
    }
    out += text.substr(start);
    if (trace) trace->copy(text.size() - start);
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
  if (size > limit) fail(ErrorKind::too_long, "encode", "a text is too long after normalisation: " + std::to_string(size) + " bytes; the limit is " + std::to_string(limit));
}

std::string_view NormaliserChain::apply(std::string_view text, Place place, std::array<std::string, 2>& buffers) const {
  std::array<Trace, 2> traces;
  const Origin* none = nullptr;
  return apply(text, place, buffers, traces, none);
}

std::string_view NormaliserChain::apply(std::string_view text, Place place, std::array<std::string, 2>& buffers,
                                        std::array<Trace, 2>& traces, const Origin*& origins) const {
  const size_t limit = growth_limit(text.size());
  size_t next = 0;
  for (const auto& step : steps_) {
    buffers[next].clear();
    Trace* trace = origins != nullptr ? &traces[next] : nullptr;
    if (trace) trace->begin(text, origins);
    if (!step->apply(text, place, buffers[next], trace)) continue;
    if (trace) origins = trace->written();
    text = buffers[next];
    check_growth(text.size(), limit);
    next ^= 1;
  }
  return text;
}

}  // namespace weft::text
