// json: one pass over the text with an explicit stack: depth costs bounded memory and no native stack.
#include "core/json.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/utf8.h"

namespace weft::json {

namespace {

struct Node {
  Type type;
  uint32_t size = 0;  // bytes of a string, elements of an array, members of an object
  union {
    bool flag;
    int64_t whole;
    double real;
    uint32_t offset;  // of a string in the text
    uint32_t end;     // one past the last node of a container
  };
};

const char* name_of(Type type) {
  static constexpr const char* kNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace

struct Store {
  std::string text;
  std::string where;
  std::vector<Node> nodes;

  std::string_view string(const Node& node) const { return std::string_view(text).substr(node.offset, node.size); }
  uint32_t after(uint32_t index) const { return nodes[index].type >= Type::array ? nodes[index].end : index + 1; }
};

namespace {

// Finds out whether an object repeats a key, in time linear in the number of members.
class KeySet {
 public:
  bool repeats(const Store& store, uint32_t object) {
    const uint32_t count = store.nodes[object].size;
    if (count < 2) return false;
    if (count <= kFew) return repeats_among_few(store, object);
    size_t slots = 16;
    while (slots < size_t{count} * 2) slots *= 2;
    table_.assign(slots, 0);
    for (uint32_t i = object + 1; i < store.nodes[object].end; i = store.after(i + 1)) {
      const std::string_view key = store.string(store.nodes[i]);
      size_t slot = std::hash<std::string_view>{}(key) & (slots - 1);
      for (; table_[slot] != 0; slot = (slot + 1) & (slots - 1))
        if (store.string(store.nodes[table_[slot]]) == key) return true;
      table_[slot] = i;
    }
    return false;
  }

 private:
  static constexpr uint32_t kFew = 8;

  static bool repeats_among_few(const Store& store, uint32_t object) {
    std::string_view seen[kFew];
    uint32_t count = 0;
    for (uint32_t i = object + 1; i < store.nodes[object].end; i = store.after(i + 1)) {
      const std::string_view key = store.string(store.nodes[i]);
      for (uint32_t k = 0; k < count; ++k)
        if (seen[k] == key) return true;
      seen[count++] = key;
    }
    return false;
  }

  std::vector<uint32_t> table_;  // node index of a key; 0 is free (node 0 is never a key)
};

class Parser {
 public:
  explicit Parser(Store& store) : store_(store), p_(store.text.data()), end_(p_ + store.text.size()) {}

  void run() {
    value();
    while (!open_.empty()) member_or_close();
    space();
    if (p_ != end_) wrong("text follows the end of the document");
  }

 private:
  [[noreturn]] void wrong(const std::string& what) const {
    fail(ErrorKind::format, store_.where, "malformed JSON: " + what + " at byte " +
                                std::to_string(p_ - store_.text.data()));
  }

  void space() {
    while (p_ != end_ && (*p_ == ' ' || *p_ == '\n' || *p_ == '\r' || *p_ == '\t')) ++p_;
  }

  char peek() {
    space();
    if (p_ == end_) wrong("the text ends too early");
    return *p_;
  }

  Node& add(Type type) {
    store_.nodes.push_back({.type = type, .whole = 0});
    return store_.nodes.back();
  }

  void value() {
    switch (peek()) {
      case '{': return open(Type::object);
      case '[': return open(Type::array);
      case '"': return string();
      case 't': return literal("true", Type::boolean, true);
      case 'f': return literal("false", Type::boolean, false);
      case 'n': return literal("null", Type::null, false);
      default: return number();
    }
  }

  void open(Type type) {
    if (open_.size() == kMaxDepth) wrong("nested deeper than " + std::to_string(kMaxDepth));
    ++p_;
    open_.push_back(static_cast<uint32_t>(store_.nodes.size()));
    add(type);
  }

  // Reads what may follow inside the innermost open container: a separator and an element, or the closing bracket.
  void member_or_close() {
    const uint32_t container = open_.back();
    const bool object = store_.nodes[container].type == Type::object;
    const bool first = store_.nodes[container].size == 0;
    char c = peek();
    if (c == (object ? '}' : ']')) return close(container);
    if (!first) {
      if (c != ',') wrong(object ? "expected ',' or '}'" : "expected ',' or ']'");
      ++p_;
      c = peek();
    }
    if (object) {
      if (c != '"') wrong("expected a key");
      string();
      if (peek() != ':') wrong("expected ':'");
      ++p_;
    }
    ++store_.nodes[container].size;
    value();
  }

  void close(uint32_t container) {
    ++p_;
    store_.nodes[container].end = static_cast<uint32_t>(store_.nodes.size());
    const bool object = store_.nodes[container].type == Type::object;
    if (object && keys_.repeats(store_, container)) wrong("an object repeats a key");
    open_.pop_back();
  }

  void literal(std::string_view word, Type type, bool flag) {
    if (std::string_view(p_, static_cast<size_t>(end_ - p_)).substr(0, word.size()) != word) wrong("unknown word");
    p_ += word.size();
    add(type).flag = flag;
  }

  static bool digit(char c) { return c >= '0' && c <= '9'; }

  void digits() {
    if (p_ == end_ || !digit(*p_)) wrong("expected a digit");
    while (p_ != end_ && digit(*p_)) ++p_;
  }

  void number() {
    const char* start = p_;
    if (*p_ == '-') ++p_;
    if (p_ != end_ && *p_ == '0') ++p_;
    else if (p_ != end_ && digit(*p_)) digits();
    else wrong("expected a value");
    bool whole = true;
    if (p_ != end_ && *p_ == '.') whole = false, ++p_, digits();
    if (p_ != end_ && (*p_ == 'e' || *p_ == 'E')) {
      whole = false, ++p_;
      if (p_ != end_ && (*p_ == '+' || *p_ == '-')) ++p_;
      digits();
    }
    int64_t exact = 0;
    if (whole && std::from_chars(start, p_, exact).ec == std::errc{}) {
      add(Type::integer).whole = exact;
      return;
    }
    double real = 0;
    if (std::from_chars(start, p_, real).ec != std::errc{} || !std::isfinite(real)) wrong("a number is out of range");
    add(Type::real).real = real;
  }

  void string() {
    char* out = ++p_;  // escapes shrink, so the decoded text fits where the source stood
    const char* start = out;
    while (true) {
      char* run = p_;
      while (p_ != end_ && *p_ != '"' && *p_ != '\\' && static_cast<unsigned char>(*p_) >= 0x20) ++p_;
      if (out != run) std::memmove(out, run, static_cast<size_t>(p_ - run));
      out += p_ - run;
      if (p_ == end_) wrong("a string does not end");
      if (*p_ == '"') break;
      if (*p_ != '\\') wrong("a control character in a string");
      ++p_;
      out += escape(out);
    }
    ++p_;
    Node& node = add(Type::string);
    node.offset = static_cast<uint32_t>(start - store_.text.data());
    node.size = static_cast<uint32_t>(out - start);
  }

  size_t escape(char* out) {
    if (p_ == end_) wrong("a string does not end");
    switch (*p_++) {
      case '"': return *out = '"', 1;
      case '\\': return *out = '\\', 1;
      case '/': return *out = '/', 1;
      case 'b': return *out = '\b', 1;
      case 'f': return *out = '\f', 1;
      case 'n': return *out = '\n', 1;
      case 'r': return *out = '\r', 1;
      case 't': return *out = '\t', 1;
      case 'u': break;
      default: wrong("an unknown escape");
    }
    char32_t code = hex4();
    if (code >= 0xDC00 && code <= 0xDFFF) wrong("a lone surrogate");
    if (code >= 0xD800 && code <= 0xDBFF) {
      if (end_ - p_ < 2 || p_[0] != '\\' || p_[1] != 'u') wrong("a lone surrogate");
      p_ += 2;
      const char32_t low = hex4();
      if (low < 0xDC00 || low > 0xDFFF) wrong("a lone surrogate");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    return utf8::encode(code, out);
  }

  char32_t hex4() {
    uint32_t code = 0;
    if (end_ - p_ < 4) wrong("a string does not end");
    const auto [stop, error] = std::from_chars(p_, p_ + 4, code, 16);
    if (error != std::errc{} || stop != p_ + 4) wrong("expected four hexadecimal digits");
    p_ += 4;
    return code;
  }

  Store& store_;
  char* p_;
  char* end_;
  std::vector<uint32_t> open_;
  KeySet keys_;
};

// Where a node stands, as `model.merges[3]`; empty for the root. Found by walking down, since only errors ask.
std::string path_of(const Store& store, uint32_t wanted) {
  std::string path;
  for (uint32_t at = 0; at != wanted;) {
    const bool object = store.nodes[at].type == Type::object;
    uint32_t child = at + 1, place = 0;
    while (store.after(child + object) <= wanted) child = store.after(child + object), ++place;
    if (!object) path.append("[").append(std::to_string(place)).append("]");
    else path.append(path.empty() ? "" : ".").append(store.string(store.nodes[child]).substr(0, 64));
    at = child + object;
    if (object && wanted == child) break;
  }
  return path;
}

std::string place_of(const Store& store, uint32_t index) {
  const std::string path = path_of(store, index);
  return path.empty() ? "the document" : "'" + path + "'";
}

const Node& checked(const Store* store, uint32_t index, Type wanted) {
  if (store == nullptr) fail(ErrorKind::format, "json", std::string("a value is missing: expected ") + name_of(wanted));
  const Node& node = store->nodes[index];
  if (node.type != wanted)
    fail(ErrorKind::format, store->where, "wrong type: " + place_of(*store, index) + " is of type " +
                                name_of(node.type) + ", not " + name_of(wanted));
  return node;
}

}  // namespace

Document::Document(std::string_view text, std::string_view where) : store_(std::make_unique<Store>()) {
  store_->where = where;
  if (text.size() >= std::numeric_limits<uint32_t>::max())
    fail(ErrorKind::format, store_->where, "the text is too long: " + std::to_string(text.size()) + " bytes");
  if (const size_t bad = utf8::first_malformed(text); bad != text.size())
    fail(ErrorKind::format, store_->where, "malformed UTF-8: at byte " + std::to_string(bad));
  store_->text = text;
  store_->nodes.reserve(text.size() / 12);  // about what a vocabulary needs
  Parser(*store_).run();
}

Document::Document(Document&&) noexcept = default;
Document& Document::operator=(Document&&) noexcept = default;
Document::~Document() = default;
Value Document::root() const { return {store_.get(), 0}; }

Type Value::type() const {
  if (store_ == nullptr) fail(ErrorKind::format, "json", "a value is missing");
  return store_->nodes[index_].type;
}

bool Value::boolean() const { return checked(store_, index_, Type::boolean).flag; }
int64_t Value::integer() const { return checked(store_, index_, Type::integer).whole; }
std::string_view Value::string() const {
  const Node& node = checked(store_, index_, Type::string);
  return store_->string(node);
}

double Value::number() const {
  if (is(Type::integer)) return static_cast<double>(integer());
  return checked(store_, index_, Type::real).real;
}

size_t Value::size() const {
  return is(Type::object) ? store_->nodes[index_].size : checked(store_, index_, Type::array).size;
}

Value Value::find(std::string_view key) const {
  for (const auto& [name, value] : members())
    if (name == key) return value;
  return {};
}

Value Value::at(std::string_view key) const {
  const Value found = find(key);
  if (!found)
    fail(ErrorKind::format, store_->where, "a key is missing: '" + std::string(key) + "' in " +
                                place_of(*store_, index_));
  return found;
}

bool Value::boolean_or(std::string_view key, bool otherwise) const {
  const Value found = find(key);
  return found && !found.is_null() ? found.boolean() : otherwise;
}

int64_t Value::integer_or(std::string_view key, int64_t otherwise) const {
  const Value found = find(key);
  return found && !found.is_null() ? found.integer() : otherwise;
}

std::string_view Value::string_or(std::string_view key, std::string_view otherwise) const {
  const Value found = find(key);
  return found && !found.is_null() ? found.string() : otherwise;
}

Value::Range<Value::Item> Value::items() const {
  const Node& node = checked(store_, index_, Type::array);
  return {{store_, index_ + 1}, {store_, node.end}};
}

Value::Range<Value::Member> Value::members() const {
  const Node& node = checked(store_, index_, Type::object);
  return {{store_, index_ + 1}, {store_, node.end}};
}

Value::Item& Value::Item::operator++() { return index = store->after(index), *this; }
Value::Member& Value::Member::operator++() { return index = store->after(index + 1), *this; }

}  // namespace weft::json
