// combine: the weighted sum of the rows of each token.
//
// Meaning  weft/ops/experts.py
// Layout   x [R, cols]; places i32 [count / cols, top], weights [count / cols, top]; with SHARED shared [count / cols, cols]
//          and share [count / cols]
// Method   one invocation an element, choices in order
// Bound    memory
#include group
#params x, places, weights, out, count, cols, top
#if SHARED
#params shared_rows, share
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
  let token = i / p.cols;
  var sum = 0.0;
  for (var k = token * p.top; k < (token + 1u) * p.top; k++) {
    sum = fma(f(p.x + arena[p.places + k] * p.cols + i % p.cols), f(p.weights + k), sum);
  }
#if SHARED
  sum = fma(f(p.shared_rows + i), f(p.share + token), sum);
#endif
  put(p.out + i, sum);
}
