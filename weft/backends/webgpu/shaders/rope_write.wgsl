// rope_write: queries turned; keys turned and, with the values, written into the pages of a state.
//
// Meaning  weft/ops/rope.py
// Layout   q [T, heads, dim]; k, v [T, key_heads, dim]; table [T, 2 pairs]; the state as lib/pages; the result may
//          overwrite q
// Method   one workgroup a token and head, of queries, of keys and of values; with NORMED queries and keys are rows
//          before their norms, rms_norm's q_gain and k_gain
// Bound    memory
#if NORMED
#bind q_gain: array<f32>
#bind k_gain: array<f32>
#params q_eps: f32, k_eps: f32
var<workgroup> plain: array<f32, 512>;
#endif
#include put_row
#include turned
#params q, k, v, table, positions, segments, pages, out, tokens, sequences, max_pages, heads, key_heads, dim, pairs

#if NORMED
// A row divided by its root mean square, in the order of rms_norm; multiplied by the caller.
fn norm(lane: u32, source: u32, eps: f32) {
  var part = 0.0;
  for (var c = lane; c < p.dim; c += LANES) { part = fma(f(source + c), f(source + c), part); }
  let root = sqrt(sum_lanes(lane, part) / f32(p.dim) + eps);
  for (var c = lane; c < p.dim; c += LANES) { plain[c] = f(source + c) / root; }
}
#endif

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let group = group_of(at, groups);
  let each = p.heads + 2u * p.key_heads;
  if (group >= p.tokens * each) { return; }
  let token = group / each;
  let which = group % each;
  let turn = p.table + token * 2u * p.pairs;
  if (which < p.heads) {
    let place = (token * p.heads + which) * p.dim;
#if NORMED
    norm(lane, p.q + place, p.q_eps);
    for (var c = lane; c < p.dim; c += LANES) { plain[c] = plain[c] * q_gain[c]; }
    workgroupBarrier();
#endif
    for (var c = lane; c < p.dim; c += LANES) { row[c] = turned(p.q + place, turn, p.pairs, c); }
    workgroupBarrier();
    for (var c = lane; c < p.dim; c += LANES) { put(p.out + place + c, row[c]); }
    return;
  }
  let is_value = which >= p.heads + p.key_heads;
  let head = (which - p.heads) % p.key_heads;
  let source = (token * p.key_heads + head) * p.dim;
#if NORMED
  if (!is_value) {
    norm(lane, p.k + source, p.k_eps);
    for (var c = lane; c < p.dim; c += LANES) { plain[c] = plain[c] * k_gain[c]; }
    workgroupBarrier();
  }
#endif
  for (var c = lane; c < p.dim; c += LANES) {
    if (is_value) { row[c] = f(p.v + source + c); } else { row[c] = turned(p.k + source, turn, p.pairs, c); }
  }
  workgroupBarrier();
  put_row(lane, token, head, is_value);
}
