// gated_clamped: (u + 1) g sigmoid(alpha g), both clamped.
//
// Meaning  weft/ops/elementwise.py
// Layout   count elements
// Method   one invocation an element
// Bound    memory
#include math
#include group
#params gate, up, out, count, limit: f32, alpha: f32

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
  let g = min(f(p.gate + i), p.limit);
  let u = clamp(f(p.up + i), -p.limit, p.limit);
  put(p.out + i, (u + 1.0) * g * sigmoid(p.alpha * g));
}
