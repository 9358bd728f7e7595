// halves: all float16, widened as the device does; to see whether it does so rightly.
//
// Meaning  the bits of numpy's float32 of every float16
// Layout   out [65536]
// Method   one invocation a pair
// Bound    nothing
#include group
#include half
#params out

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  let pair = widened2(2u * i | ((2u * i + 1u) << 16u));
  put(p.out + 2u * i, pair.x);
  put(p.out + 2u * i + 1u, pair.y);
}
