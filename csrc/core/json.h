// json: a strict reader (RFC 8259) for files and programs. The input is not trusted.
//
// A Document owns a copy of the text and a flat list of nodes in reading order; a Value is a light handle into it and
// must not outlive it. Strings are views into the owned text, escapes resolved in place. Refused: depth above 64,
// duplicate keys, malformed UTF-8, lone surrogates, trailing text, numbers that are not finite.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace weft::json {

enum class Type : uint8_t { null, boolean, integer, real, string, array, object };

inline constexpr int kMaxDepth = 64;

struct Store;  // the text and the nodes

class Value {
 public:
  Value() = default;  // no value: find() returns it for a missing key
  Value(const Store* store, uint32_t index) : store_(store), index_(index) {}

  explicit operator bool() const { return store_ != nullptr; }
  Type type() const;
  bool is(Type wanted) const { return *this && type() == wanted; }
  bool is_null() const { return is(Type::null); }

  // Each throws Error(format) when the value has another type. number() also takes an integer.
  bool boolean() const;
  int64_t integer() const;
  double number() const;
  std::string_view string() const;
  size_t size() const;  // elements of an array, members of an object

  Value find(std::string_view key) const;  // a scan: for objects with few members
  Value at(std::string_view key) const;    // as find, but a missing key throws Error(format)

  // For a member that may be missing or null.
  bool boolean_or(std::string_view key, bool otherwise) const;
  int64_t integer_or(std::string_view key, int64_t otherwise) const;
  std::string_view string_or(std::string_view key, std::string_view otherwise) const;

  // for (Value item : array.items()), for (auto [key, value] : object.members())
  struct Item;
  struct Member;
  template <class Iterator>
  struct Range {
    Iterator first, last;
    Iterator begin() const { return first; }
    Iterator end() const { return last; }
  };
  Range<Item> items() const;
  Range<Member> members() const;

 private:
  const Store* store_ = nullptr;
  uint32_t index_ = 0;
};

struct Value::Item {
  const Store* store;
  uint32_t index;
  Value operator*() const { return {store, index}; }
  Item& operator++();
  bool operator!=(const Item& other) const { return index != other.index; }
};

struct Value::Member {
  const Store* store;
  uint32_t index;  // of the key; the value follows it
  std::pair<std::string_view, Value> operator*() const { return {Value(store, index).string(), {store, index + 1}}; }
  Member& operator++();
  bool operator!=(const Member& other) const { return index != other.index; }
};

class Document {
 public:
  // `where` names the source in error messages.
  explicit Document(std::string_view text, std::string_view where = "json");
  Document(Document&&) noexcept;
  Document& operator=(Document&&) noexcept;
  ~Document();
  Value root() const;

 private:
  std::unique_ptr<Store> store_;
};

inline Document parse(std::string_view text, std::string_view where = "json") { return Document(text, where); }

}  // namespace weft::json
