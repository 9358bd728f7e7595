// replay: a main for any compiler. It runs a target on every file named and on every file of the folders named; with
// --runs N [--seed S] [--seconds T] [--first I] then on N of them that it changed, or as many as T seconds allow. Change I depends on S, I and
// the corpus alone, so `--first I --runs 1` repeats it.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include <unistd.h>

#include "fuzz/target.h"

// Where a target has none, bytes are changed.
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr unsigned kSeconds = 60;  // of one input; sanitizers and a busy machine need them

std::minstd_rand random_numbers;
volatile std::sig_atomic_t running = -1;  // the change that is tried; -1: a file as it is

std::vector<fs::path> files_of(const char* place) {
  std::vector<fs::path> files;
  if (!fs::is_directory(place)) return {place};
  for (const fs::directory_entry& entry : fs::directory_iterator(place))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// Says which input it was. Only what a signal handler may call.
void ended(int signal) {
  char text[64];
  int size = 0;
  const auto put = [&](const char* part) {
    while (*part) text[size++] = *part++;
  };
  put("signal ");
  char digits[24];
  const auto number = [&](long value) {
    int count = 0;
    if (value < 0) put("-"), value = -value;
    do digits[count++] = static_cast<char>('0' + value % 10);
    while (value /= 10);
    while (count) text[size++] = digits[--count];
  };
  number(signal);
  put(" in input ");
  number(running);
  put("\n");
  if (write(2, text, static_cast<size_t>(size)) < 0) _exit(3);
  _exit(3);
}

void run(const Bytes& bytes) {
  alarm(kSeconds);
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  alarm(0);
}

Bytes changed(const Bytes& seed) {
  Bytes bytes = seed;
  const size_t room = seed.size() + 4096;
  bytes.resize(room);
  size_t size = seed.size();
  for (unsigned edits = 1 + random_numbers() % 3 / 2; edits--;)
    size = LLVMFuzzerCustomMutator ? LLVMFuzzerCustomMutator(bytes.data(), size, room, static_cast<unsigned>(random_numbers())) : LLVMFuzzerMutate(bytes.data(), size, room);
  bytes.resize(size);
  return bytes;
}

}  // namespace

// A few bytes are flipped, replaced by odd ones, removed, repeated or copied from elsewhere.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  constexpr uint8_t kOdd[] = {0, 1, 2, 0x7F, 0x80, 0xFF, '"', '0', '-', ' ', '{'};
  for (unsigned edits = 1 + random_numbers() % 4; edits-- && size;) {
    const size_t at = random_numbers() % size, count = std::min<size_t>(1 + random_numbers() % 8, size - at);
    switch (random_numbers() % 5) {
      case 0: data[at] ^= static_cast<uint8_t>(1u << random_numbers() % 8); break;
      case 1: std::fill_n(data + at, count, kOdd[random_numbers() % std::size(kOdd)]); break;
      case 2: std::copy(data + at + count, data + size, data + at), size -= count; break;
      case 3:
        if (size + count > max_size) break;
        std::copy_backward(data + at, data + size, data + size + count), size += count;
        break;
      default: {
        const size_t from = random_numbers() % size;
        std::copy_n(data + from, std::min(count, size - from), data + at);
      }
    }
  }
  return size;
}

int main(int argc, char** argv) {
  long runs = 0, seed = 1, seconds = 0, first = 0;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.starts_with("--") && i + 1 < argc) {
      const long value = std::atol(argv[++i]);
      (word == "--runs" ? runs : word == "--seed" ? seed : word == "--first" ? first : seconds) = value;
      continue;
    }
    for (const fs::path& path : files_of(argv[i])) {
      std::ifstream file(path, std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      if (!file) return std::fprintf(stderr, "%s cannot be read\n", path.c_str()), 2;
    }
  }
  for (const int signal : {SIGABRT, SIGALRM}) std::signal(signal, ended);
#ifndef __SANITIZE_ADDRESS__  // which says more itself
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, ended);
#endif
  for (const Bytes& bytes : corpus) run(bytes);
  const auto begun = std::chrono::steady_clock::now();
  const auto over = [&] { return seconds && std::chrono::steady_clock::now() - begun > std::chrono::seconds(seconds); };
  long done = 0;
  for (long i = first; i < first + runs && !corpus.empty() && !over(); ++i, ++done) {
    random_numbers.seed(static_cast<unsigned>(seed * 1000003 + i));
    running = static_cast<std::sig_atomic_t>(i);
    run(changed(corpus[random_numbers() % corpus.size()]));
  }
  std::printf("%s: %zu inputs", fs::path(argv[0]).filename().c_str(), corpus.size());
  if (runs) std::printf(", %ld changed ones", done);
  std::printf("\n");
  return corpus.empty();
}
