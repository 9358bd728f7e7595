// replay: a main for any compiler. It runs a target on every file named and on every file of the folders named.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz/target.h"

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_of(const char* place) {
  std::vector<fs::path> files;
  if (!fs::is_directory(place)) return {place};
  for (const fs::directory_entry& entry : fs::directory_iterator(place))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

// Only libFuzzer mutates; a replay never asks.
size_t LLVMFuzzerMutate(uint8_t*, size_t size, size_t) { return size; }

int main(int argc, char** argv) {
  size_t count = 0;
  for (int i = 1; i < argc; ++i)
    for (const fs::path& path : files_of(argv[i])) {
      std::ifstream file(path, std::ios::binary);
      const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
      if (!file) return std::fprintf(stderr, "%s cannot be read\n", path.c_str()), 2;
      LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
      ++count;
    }
  std::printf("%s: %zu inputs\n", fs::path(argv[0]).filename().c_str(), count);
  return count == 0;
}
