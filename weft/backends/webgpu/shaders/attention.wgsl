// attention: softmax(q kᵀ * scale) v within each sequence of a step.
//
// Meaning  weft/ops/attention.py
// Layout   q [T, heads, dim]; k, v [T, key_heads, dim]; segments i32 [B+1]; dim at most 512
// Method   one workgroup a query and head. Blocks of 64 keys from the sequence's start: a lane scores one key, then
//          takes every 64th channel; running maximum and sum
// Bound    arithmetic
#include attend
#if SINKS
#bind sinks: array<f32>
#endif
#if TABLE
#bind bias: array<f32>
#bind buckets: array<f32>
#endif
#params q, k, v, segments, out, tokens, sequences, heads, key_heads, dim, window, reach, scale: f32, cap: f32

var<workgroup> bounds: vec2<u32>;

fn sequence_of(token: u32) -> vec2<u32> {
  var low = 0u;
  var high = p.sequences;
  while (low + 1u < high) {  // segments[low] <= token < segments[high]
    let middle = (low + high) / 2u;
    if (u32(n(p.segments + middle)) <= token) { low = middle; } else { high = middle; }
  }
  return vec2<u32>(u32(n(p.segments + low)), u32(n(p.segments + low + 1u)));
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let group = group_of(at, groups);
  if (group >= p.tokens * p.heads) { return; }
  let token = group / p.heads;
  let head = group % p.heads;
  if (lane == 0u) { bounds = sequence_of(token); }
  for (var c = lane; c < p.dim; c += LANES) { query[c] = f(p.q + group * p.dim + c); }
  let whole = workgroupUniformLoad(&bounds);
  let stride = p.key_heads * p.dim;
  let source = head / (p.heads / p.key_heads) * p.dim;
  let here = i32(token - whole.x);
  var begin = 0u;
  var end = whole.y - whole.x;
#if CAUSAL
  end = u32(here) + 1u;
#endif
  if (p.window > 0u) {
    begin = u32(max(here - i32(p.window) + 1, 0)) / LANES * LANES;
    end = min(end, u32(here) + p.window);
  }
  var largest = NEVER;
  var total = 0.0;
  var sums: array<f32, {{SLOTS}}>;
  for (var block = begin; block < end; block += LANES) {
    let key = block + lane;
    var score = NEVER;
    if (key < end && (p.window == 0u || here - i32(key) < i32(p.window))) {
      let place = p.k + (whole.x + key) * stride + source;
      score = 0.0;
      for (var c = 0u; c < {{DIM}}u; c++) { score = fma(query[c], f(place + c), score); }
      score = score * p.scale;
      if (p.cap > 0.0) { score = p.cap * tanh_(score / p.cap); }
#if TABLE
      let ahead = clamp(i32(key) - here, -i32(p.reach), i32(p.reach)) + i32(p.reach);
      score += bias[u32(buckets[ahead]) * p.heads + head];
#endif
    }
    let next = max(largest, max_lanes(lane, score));
    let kept = exp_(largest - next);
    let share = select(exp_(score - next), 0.0, score == NEVER);
    shares[lane] = share;
    total = fma(total, kept, sum_lanes(lane, share));
    let count = min(LANES, end - block);
    for (var s = 0u; s < {{SLOTS}}u; s++) {
      let c = lane + s * LANES;
      var sum = sums[s] * kept;
      if (c < p.dim) {
        let from_v = p.v + (whole.x + block) * stride + source + c;
        for (var j = 0u; j + 8u <= count; j += 8u) {  // eight are read before any is used
#each i 8
          let v{{i}} = f(from_v + (j + {{i}}u) * stride);
#end
#each i 8
          sum = fma(shares[j + {{i}}u], v{{i}}, sum);
#end
        }
        for (var j = count / 8u * 8u; j < count; j++) { sum = fma(shares[j], f(from_v + j * stride), sum); }
      }
      sums[s] = sum;
    }
    largest = next;
    workgroupBarrier();
  }
#if SINKS
  let last = max(largest, sinks[head]);
  total = fma(total, exp_(largest - last), exp_(sinks[head] - last));
  for (var s = 0u; s < {{SLOTS}}u; s++) { sums[s] = sums[s] * exp_(largest - last); }
#endif
  for (var s = 0u; s < {{SLOTS}}u; s++) {
    let c = lane + s * LANES;
    if (c < p.dim) { put(p.out + group * p.dim + c, sums[s] / total); }
  }
}
