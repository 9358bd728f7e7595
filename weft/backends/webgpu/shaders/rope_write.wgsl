// rope_write: queries turned; keys turned and, with the values, written into the pages of a state.
//
// Meaning  weft/ops/rope.py
// Layout   q [T, heads, dim]; k, v [T, key_heads, dim]; table [T, 2 pairs]; the state as lib/pages; the result may
//          overwrite q
// Method   one workgroup a token and head, of queries, of keys and of values
// Bound    memory
#include put_row
#include turned
#params q, k, v, table, positions, segments, pages, out, tokens, sequences, max_pages, heads, key_heads, dim, pairs

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
    for (var c = lane; c < p.dim; c += LANES) { row[c] = turned(p.q + place, turn, p.pairs, c); }
    workgroupBarrier();
    for (var c = lane; c < p.dim; c += LANES) { put(p.out + place + c, row[c]); }
    return;
  }
  let is_value = which >= p.heads + p.key_heads;
  let head = (which - p.heads) % p.key_heads;
  let source = (token * p.key_heads + head) * p.dim;
  for (var c = lane; c < p.dim; c += LANES) {
    if (is_value) { row[c] = f(p.v + source + c); } else { row[c] = turned(p.k + source, turn, p.pairs, c); }
  }
  workgroupBarrier();
  put_row(lane, token, head, is_value);
}
