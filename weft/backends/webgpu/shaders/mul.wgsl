// mul: x * y, y like x or one row of it, which may be a weight.
//
// Meaning  weft/ops/elementwise.py
// Layout   count elements; y repeats every `period`
// Method   one invocation an element
// Bound    memory
#include group
#if WEIGHT
#bind weight: array<f32>
#endif
#params x, y, out, count, period

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
#if WEIGHT
  put(p.out + i, f(p.x + i) * weight[i % p.period]);
#else
  put(p.out + i, f(p.x + i) * f(p.y + i % p.period));
#endif
}
