#include <cstring>
#include <memory>
#include <thread>

#include "core/memory.h"
#include "tests/test.h"

namespace weft::test {

void run_kernel(const Level& level, const char* op, const std::vector<Operand>& in, const std::vector<Operand>& out,
                const std::vector<Attr>& attrs, int workers) {
  Kernel kernel = find_kernel(level, op);
  if (!kernel) {
    std::printf("no kernel %s at level %s\n", op, level.name);
    ++failures;
    return;
  }
  std::atomic<int64_t> counter{0};
  Call call{in.data(), out.data(), attrs.data(), static_cast<int>(in.size()), static_cast<int>(out.size()),
            static_cast<int>(attrs.size())};
  std::vector<std::thread> team;
  for (int index = 0; index < workers; ++index)
    team.emplace_back([&, index] {
      Memory scratch(kScratchBytes);
      kernel(call, Worker{index, workers, &counter, scratch.data()});
    });
  for (std::thread& thread : team) thread.join();
}

}  // namespace weft::test

int main(int argc, char** argv) {
  using namespace weft::test;
  int ran = 0;
  for (const Case& test : cases()) {
    if (argc > 1 && !std::strstr(test.name, argv[1])) continue;
    int before = failures;
    test.run();
    ++ran;
    if (failures != before) std::printf("FAILED %s\n", test.name);
  }
  std::printf("%d native tests, %d failed checks\n", ran, failures);
  return failures ? 1 : 0;
}
