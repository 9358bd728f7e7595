// mamba2: S = e^(rate decay) S + b (rate x)T; y = cT S + skip x, token after token.
//
// Meaning  weft/ops/recurrent.py
// Layout   x, out [T, heads, values]; b, c [T, key_heads, KEYS]; rate [T, heads]; decay, skip [heads], weights or in the
//          arena; a slot [heads, KEYS, values]
// Method   one workgroup a sequence, head and 64 columns of its state; a lane keeps one column, rows in order
// Bound    memory for few tokens: the state once in and once out; else the chain of tokens
#include group
#include math
#params x, b, c, rate, segments, out, sequences, heads, key_heads, keys, values
#if OWNED
#bind decay: array<f32>
#bind skip: array<f32>
#else
#params decay, skip
#endif
#include slots

const LANES = 64u;
const KEYS = {{KEYS}}u;
var<workgroup> into: array<f32, KEYS>;
var<workgroup> away: array<f32, KEYS>;

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
  let read = head / (p.heads / p.key_heads);
#if OWNED
  let falls = decay[head];
  let skipped = skip[head];
#else
  let falls = f(p.decay + head);
  let skipped = f(p.skip + head);
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
      into[j] = f(p.b + source + j);
      away[j] = f(p.c + source + j);
    }
    workgroupBarrier();
    if (here) {
      let rate = f(p.rate + t * p.heads + head);
      let kept = exp_(rate * falls);
      let place = (t * p.heads + head) * p.values + column;
      let x = f(p.x + place);
      let added = rate * x;
      var y = 0.0;
      for (var j = 0u; j < {{LOOP}}; j++) {
        memory[j] = fma(into[j], added, memory[j] * kept);
        y = fma(away[j], memory[j], y);
      }
      put(p.out + place, fma(skipped, x, y));
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
