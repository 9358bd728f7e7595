// group: the rows of a step by the expert that they go to.
//
// Meaning  weft/ops/experts.py
// Layout   chosen i32 [T, top]; rows i32 [T * top], starts i32 [E + 1], places i32 [T, top] contiguous
// Method   a counting sort, by one worker: counts, sums of counts, then each choice to the next place of its expert
// Bound    memory, three passes over the choices
#include "simd/simd.h"

namespace weft::ISA {

KERNEL(group) {
  const int64_t tokens = call.in[0].rows(), top = call.in[0].cols(), experts = call.out[1].size() - 1;
  const int32_t* chosen = call.in[0].as<int32_t>();
  int32_t *rows = call.out[0].as<int32_t>(), *starts = call.out[1].as<int32_t>(), *places = call.out[2].as<int32_t>();
  const auto expert_of = [&](int64_t i) {  // one that exists, whatever was given
    const int32_t expert = chosen[i];
    return expert < 0 ? 0 : expert < experts ? expert : static_cast<int32_t>(experts - 1);
  };
  for (int64_t task; (task = worker.next(1)) < 1;) {
    // starts[e + 1] counts, then is where expert e begins, then where it ends, which is where e + 1 begins.
    for (int64_t e = 0; e <= experts; ++e) starts[e] = 0;
    for (int64_t i = 0; i < tokens * top; ++i) ++starts[expert_of(i) + 1];
    int32_t total = 0;
    for (int64_t e = 1; e <= experts; ++e) {
      const int32_t count = starts[e];
      starts[e] = total;
      total += count;
    }
    for (int64_t i = 0; i < tokens * top; ++i) {
      const int32_t place = starts[expert_of(i) + 1]++;
      rows[place] = static_cast<int32_t>(i / top);
      places[i] = place;
    }
  }
}

}  // namespace weft::ISA
