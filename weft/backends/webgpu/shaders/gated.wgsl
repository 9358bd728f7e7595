// gated: activation(gate) * up.
//
// Meaning  weft/ops/elementwise.py
// Layout   count elements
// Method   one invocation an element
// Bound    memory
#include math
#include group
#params gate, up, out, count

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
  put(p.out + i, activated(f(p.gate + i)) * f(p.up + i));
}
