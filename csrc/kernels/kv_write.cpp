// kv_write: the keys and values of the step's tokens into their pages.
//
// Meaning  weft/ops/paged.py; how a row is rounded: weft/ops/state.py
// Layout   k, v [T, G, D] contiguous f32; state as in core/state.h; positions, segments and pages as in state_write.h;
//          centre [G, D] and steady [D] or absent
// Method   a task is one head of kPage tokens, rounded into scratch and then written line by line of the transposed page
// Bound    memory: reads 8 bytes and writes 2 to 8 per channel
#include "kernels/state_write.h"

namespace weft::ISA {

KERNEL(kv_write) {
  const int64_t heads = call.in[0].dim[1], dim = call.in[0].dim[2];
  const float *k = call.in[0].as<float>(), *v = call.in[1].as<float>();
  const KvState& state = *call.in[2].state;
  by_element(state, [&]<class T>() {
    RunWriter<T> writer(state, worker.scratch, call, 6);
    deal_runs(worker, call.in + 3, heads, writer.room(), [&](const Run& run) {
      const int64_t from = (run.token * heads + run.head) * dim;
      for (int64_t i = 0; i < run.count; ++i) writer.add_key(i, k + from + i * heads * dim, run.head);
      writer.write_keys(run);
      for (int64_t i = 0; i < run.count; ++i) writer.write_value(run, i, v + from + i * heads * dim);
    });
  });
}

}  // namespace weft::ISA
