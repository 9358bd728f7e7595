// delta_rule: S = e^decay S; u = beta (v - kT S); S = S + k uT; y = scale qT S, token after token.
//
// Meaning  weft/ops/recurrent.py
// Layout   q, k [T, key_heads, KEYS]; v, out [T, heads, values]; decay, beta [T, heads]; a slot [heads, KEYS, values]
// Method   one workgroup a sequence, head and 64 columns of its state; a lane keeps one column, keys in order
// Bound    memory for few tokens: the state once in and once out; else the chain of tokens
#include group
#include math
#params q, k, v, decay, beta, segments, out, sequences, heads, key_heads, keys, values, scale: f32
#include slots

const LANES = 64u;
const KEYS = {{KEYS}}u;
var<workgroup> query: array<f32, KEYS>;
var<workgroup> key: array<f32, KEYS>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let group = group_of(at, groups);
  let blocks = (p.values + LANES - 1u) / LANES;
  let sequence = group / (p.heads * blocks);
  if (sequence >= p.sequences) { return; }
  let head = group / blocks % p.heads;
  let column = group % blocks * LANES + lane;
  let here = column < p.values;
#if TILED
  let read = head % p.key_heads;
#else
  let read = head / (p.heads / p.key_heads);
#endif
  let text = text_of(lane, sequence);
  var memory = array<f32, KEYS>();
#if STATE
  if (here && text.z >= 0) {
    let source = (u32(text.z) * p.heads + head) * p.keys * p.values + column;
    for (var j = 0u; j < {{LOOP}}; j++) { memory[j] = state[source + j * p.values]; }
  }
#endif
  for (var t = u32(text.x); t < u32(text.y); t++) {
    let source = (t * p.key_heads + read) * p.keys;
    for (var j = lane; j < p.keys; j += LANES) {
      query[j] = f(p.q + source + j);
      key[j] = f(p.k + source + j);
    }
    workgroupBarrier();
    if (here) {
      let kept = exp_(f(p.decay + t * p.heads + head));
      var known = 0.0;
      for (var j = 0u; j < {{LOOP}}; j++) {
        memory[j] = memory[j] * kept;
        known = fma(key[j], memory[j], known);
      }
      let place = (t * p.heads + head) * p.values + column;
      let change = f(p.beta + t * p.heads + head) * (f(p.v + place) - known);
      var y = 0.0;
      for (var j = 0u; j < {{LOOP}}; j++) {
        memory[j] = fma(key[j], change, memory[j]);
        y = fma(query[j], memory[j], y);
      }
      put(p.out + place, y * p.scale);
    }
    workgroupBarrier();
  }
#if STATE
  if (here) {
    let target_ = (u32(text.w) * p.heads + head) * p.keys * p.values + column;
    for (var j = 0u; j < {{LOOP}}; j++) { state[target_ + j * p.values] = memory[j]; }
  }
#endif
}
