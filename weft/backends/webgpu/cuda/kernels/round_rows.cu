// round_rows: numbers rounded to bfloat16, to nearest even, two in a word; subnormal ones to zero.
//
// Meaning  weft/ops/matmul.py
// Layout   x, of f32, and out lie as the arena has them
// Method   a thread takes two
// Bound    memory
#include group
#params x, out, count

FN f32 normal(f32 value) {
  u32 word = bitcast<u32>(value);
  return (word & 0x7f800000u) == 0u ? bitcast<f32>(word & 0x80000000u) : value;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  u32 i = 2u * (group_of(at, groups) * 64u + lane);
  if (i >= p.count) return;
  f32 second = i + 1u < p.count ? f(p.x + i + 1u) : 0.0;
  arena[p.out + i / 2u] = bfloats(normal(f(p.x + i)), normal(second));
}
