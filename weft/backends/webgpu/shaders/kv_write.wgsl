// kv_write: the step's keys and values, rounded, into the pages of a state.
//
// Meaning  weft/ops/paged.py
// Layout   k, v [T, key_heads, dim]; positions [T], segments [B+1], pages [B, max_pages]; the state as lib/pages
// Method   one workgroup a token and head, of keys and then of values
// Bound    memory
#include put_row
#params k, v, positions, segments, pages, tokens, sequences, max_pages, key_heads, dim

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let group = group_of(at, groups);
  if (group >= p.tokens * p.key_heads * 2u) { return; }
  let token = group / (p.key_heads * 2u);
  let head = group % p.key_heads;
  let is_value = group % (p.key_heads * 2u) >= p.key_heads;
  let source = select(p.k, p.v, is_value) + (token * p.key_heads + head) * p.dim;
  for (var c = lane; c < p.dim; c += LANES) { row[c] = f(source + c); }
  workgroupBarrier();
  put_row(lane, token, head, is_value);
}
