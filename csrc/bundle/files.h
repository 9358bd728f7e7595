// files: where the files of a bundle are: a folder that is mapped, or memory, as in a browser.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace weft::bundle {

struct Blob {
  std::span<const std::byte> bytes;
  std::shared_ptr<void> owner;  // keeps the bytes alive

  std::string_view text() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
};

class Files {
 public:
  virtual ~Files() = default;
  // The file of this plain name. Throws Error(not_found).
  virtual Blob open(const std::string& name) const = 0;
};

class Folder : public Files {
 public:
  explicit Folder(std::string path) : path_(std::move(path)) {}
  Blob open(const std::string& name) const override;

 private:
  std::string path_;
};

// Bytes that the caller keeps alive.
class InMemory : public Files {
 public:
  void add(std::string name, std::span<const std::byte> bytes) { files_[std::move(name)] = bytes; }
  Blob open(const std::string& name) const override;

 private:
  std::map<std::string, std::span<const std::byte>> files_;
};

}  // namespace weft::bundle
