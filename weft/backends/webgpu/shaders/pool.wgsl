// pool: one row per sequence: the mean, first, last or largest of its tokens.
//
// Meaning  weft/ops/reduce.py
// Layout   x [T, cols]; segments i32 [B+1]
// Method   one invocation an element of the result, tokens in order
// Bound    memory
#include group
#params x, segments, out, count, cols

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
  let first = u32(n(p.segments + i / p.cols));
  let end = u32(n(p.segments + i / p.cols + 1u));
  let source = p.x + i % p.cols;
  let tokens = f32(end - first);
#if MODE == first
  let result = f(source + first * p.cols);
#endif
#if MODE == last
  let result = f(source + (end - 1u) * p.cols);
#endif
#if MODE == max
  var result = f(source + first * p.cols);
  for (var t = first + 1u; t < end; t++) { result = max(result, f(source + t * p.cols)); }
#endif
#if MODE == mean|mean_sqrt_len
  var result = 0.0;
  for (var t = first; t < end; t++) { result += f(source + t * p.cols); }
#endif
#if MODE == mean
  result = result / tokens;
#endif
#if MODE == mean_sqrt_len
  result = result / sqrt(tokens);
#endif
#if MODE == weightedmean
  var result = 0.0;
  for (var t = first; t < end; t++) { result = fma(f32(t - first + 1u), f(source + t * p.cols), result); }
  result = result / (tokens * (tokens + 1.0) * 0.5);
#endif
  put(p.out + i, result);
}
