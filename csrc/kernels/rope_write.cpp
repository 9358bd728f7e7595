// rope_write: queries and keys turned, and the keys and values of the step's tokens into their pages.
//
// Meaning  weft/ops/rope.py; how a row is rounded: weft/ops/state.py
// Layout   q, y [T, H, D] and k, v [T, G, D] contiguous f32; table [T, 2R], cosines and then sines; state as in
//          core/state.h; positions, segments and pages as in state_write.h; centre [G, D] and steady [D] or absent; y may be q
// Method   a task is one head of keys, of kPage tokens, with the heads of queries that read it; turned keys stay in L1
// Bound    memory: reads and writes 8 bytes per channel of q, reads 8 and writes 2 to 8 per channel of k
#include "kernels/state_write.h"
#include "kernels/turning.h"

namespace weft::ISA {

KERNEL(rope_write) {
  const int64_t heads = call.in[0].dim[1], groups = call.in[1].dim[1], dim = call.in[0].dim[2], each = heads / groups;
  const float *q = call.in[0].as<float>(), *k = call.in[1].as<float>(), *v = call.in[2].as<float>();
  const float* table = call.in[3].as<float>();
  const KvState& state = *call.in[4].state;
  float *y = call.out[0].as<float>(), *turned = reinterpret_cast<float*>(worker.scratch + kScratchBytes / 2);
  const Turning turning{dim, call.in[3].cols() / 2, call.flag("interleaved")};
  by_element(state, [&]<class T>() {
    RunWriter<T> writer(state, worker.scratch, call, 8);
    deal_runs(worker, call.in + 5, groups, writer.room(), [&](const Run& run) {
      const int64_t from = (run.token * groups + run.head) * dim;
      for (int64_t i = 0; i < run.count; ++i) {
        const float *cosine = table + (run.token + i) * 2 * turning.pairs, *sine = cosine + turning.pairs;
        const int64_t first = ((run.token + i) * heads + run.head * each) * dim;
        for (int64_t at = first; at < first + each * dim; at += dim) turning.head(y + at, q + at, cosine, sine);
        turning.head(turned, k + from + i * groups * dim, cosine, sine);
        writer.add_key(i, turned, run.head);
      }
      writer.write_keys(run);
      for (int64_t i = 0; i < run.count; ++i) writer.write_value(run, i, v + from + i * groups * dim);
    });
  });
}

}  // namespace weft::ISA
