#include <cstring>
#include <map>

#include "core/memory.h"
#include "core/pool.h"
#include "tests/test.h"

namespace weft::test {

namespace {

// The threads are kept: an emulated machine pays dearly for each new one.
Pool& team(int workers) {
  static std::map<int, Pool> teams;
  return teams.try_emplace(workers, workers).first->second;
}

}  // namespace

void run_kernel(const Level& level, const char* op, const std::vector<Operand>& in, const std::vector<Operand>& out,
                const std::vector<Attr>& attrs, int workers) {
  Kernel kernel = find_kernel(level, op);
  if (!kernel) {
    std::printf("no kernel %s at level %s\n", op, level.name);
    ++failures;
    return;
  }
  // With first tasks assigned to the workers, and with all of them drawn, in turn.
  static bool assigned = false;
  assigned = !assigned;
  const Gate open{[](const void*) {}, nullptr};
  std::atomic<int64_t> counter{0};
  Call call{in.data(), out.data(), attrs.data(), static_cast<int>(in.size()), static_cast<int>(out.size()),
            static_cast<int>(attrs.size())};
  auto work = [&](int index) {
    Memory scratch(kScratchBytes);
    kernel(call, Worker{index, workers, &counter, scratch.data(), assigned ? &open : nullptr});
  };
  team(workers).run([](void* context, int index) { (*static_cast<decltype(work)*>(context))(index); }, &work);
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
  std::string names;
  for (const std::string& name : weft::levels_present()) names += (names.empty() ? "" : ", ") + name;
  std::printf("%d native tests at %s: %d failed checks\n", ran, names.c_str(), failures);
  return failures ? 1 : 0;
}
