// stops: a text up to the first stop string, which is not part of it; how the text is cut into parts does not matter.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace weft::host {

class StopText {
 public:
  explicit StopText(const std::vector<std::string>& stops) : stops_(stops) {}

  // What can be released now; `found` becomes true at a stop string: the one that ends first, of two that end together the longer.
  std::string add(std::string_view text) {
    held_ += text;
    size_t first = std::string::npos, end = std::string::npos;
    for (const std::string& stop : stops_) {
      const size_t at = held_.find(stop);
      if (at == std::string::npos) continue;
      if (end == std::string::npos || at + stop.size() < end || (at + stop.size() == end && at < first)) first = at, end = at + stop.size();
    }
    if (first != std::string::npos) {
      found = true;
      return held_.substr(0, first);
    }
    size_t keep = 0;  // the longest end of the text that a stop string begins with
    for (const std::string& stop : stops_)
      for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size)
        if (held_.compare(held_.size() - size, size, stop, 0, size) == 0) keep = size;
    std::string out = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return out;
  }
  std::string finish() { return found ? "" : std::exchange(held_, ""); }

  bool found = false;

 private:
  const std::vector<std::string>& stops_;
  std::string held_;
};

}  // namespace weft::host
