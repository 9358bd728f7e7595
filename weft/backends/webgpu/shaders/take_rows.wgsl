// take_rows: rows of x, chosen by index.
//
// Meaning  weft/ops/gather.py
// Layout   x [T, cols]; rows i32 [count / cols]
// Method   one invocation an element
// Bound    memory
#include group
#params x, chosen, out, count, cols

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
  arena[p.out + i] = arena[p.x + u32(n(p.chosen + i / p.cols)) * p.cols + i % p.cols];
}
