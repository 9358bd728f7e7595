// rope_pages: queries turned; keys turned and, with the values, written into the pages of a state of halves.
//
// Meaning  weft/ops/rope.py
// Layout   as shaders/rope_write.wgsl
// Method   one warp a token and head, which asks for everything at once: a lane has channels lane, lane + 32, ...; with
//          NORMED rows before their norms, added up in the shader's order: 64 lanes, then a tree
// Bound    memory
#if NORMED
#bind q_gain: array<f32>
#bind k_gain: array<f32>
#params q_eps: f32, k_eps: f32
#endif
#include group
#include sequence
#bind rw state: array<u32>
#params q, k, v, table, positions, segments, pages, out, tokens, sequences, max_pages, heads, key_heads, dim, pairs
const PAGE = 32u;
const DIM = {{DIM}}u;
const EACH = ({{DIM}}u + 31u) / 32u;
const ROWS = 4u;  // warps of a workgroup
var<workgroup> rows: array<f32, {{ALL_ROWS}}>;  // [warp][channel]

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 lane = index % 32u, warp = index / 32u, group = group_of(at, groups) * ROWS + warp;
  u32 each = p.heads + 2u * p.key_heads, token = group / each, which = group % each;
  bool here = token < p.tokens;
  if (!here) token = 0u;
  bool is_query = which < p.heads, is_value = which >= p.heads + p.key_heads;
  u32 head = is_query ? which : (which - p.heads) % p.key_heads;
  u32 from = is_query ? p.q + (token * p.heads + head) * DIM
                      : (is_value ? p.v : p.k) + (token * p.key_heads + head) * DIM;
  u32 turn = p.table + token * 2u * p.pairs, position = u32(n(p.positions + token));
  f32 x[EACH], cosine[EACH], sine[EACH];
#if NORMED
  f32 gain[EACH];
#endif
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 c = lane + 32u * i;
    x[i] = c < DIM ? f(from + c) : 0.0;
#if INTERLEAVED
    u32 pair = c / 2u;
#else
    u32 pair = c % p.pairs;
#endif
    bool turns = !is_value && c < 2u * p.pairs;
    cosine[i] = turns ? f(turn + pair) : 1.0;
    sine[i] = turns ? f(turn + p.pairs + pair) : 0.0;
#if NORMED
    gain[i] = c < DIM && !is_value ? (is_query ? q_gain[c] : k_gain[c]) : 1.0;
#endif
  }
  u32 page = 0;
  if (!is_query) page = u32(n(p.pages + sequence_of(token, p.segments, p.sequences) * p.max_pages + position / PAGE));
#if NORMED
  f32 even = 0, odd = 0;  // of lanes 0 to 31 of 64, and of the others
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    if (i % 2u == 0u) even = w_fma(x[i], x[i], even);
    else odd = w_fma(x[i], x[i], odd);
  }
  f32 total = even + odd;
  for (u32 mask = 16u; mask > 0u; mask /= 2u) total = total + from_lane(total, mask);
  f32 root = w_sqrt(total / f32(DIM) + (is_query ? p.q_eps : p.k_eps));
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    if (!is_value) x[i] = x[i] / root * gain[i];
  }
#endif
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    if (lane + 32u * i < DIM) rows[warp * DIM + lane + 32u * i] = x[i];
  }
  w_workgroupBarrier();
  f32 turned[EACH];
#pragma unroll
  for (u32 i = 0; i < EACH; i++) {
    u32 c = lane + 32u * i;
    turned[i] = x[i];
    if (!is_value && c < 2u * p.pairs) {
#if INTERLEAVED
      bool second = c % 2u == 1u;
      u32 other = c ^ 1u;
#else
      bool second = c >= p.pairs;
      u32 other = second ? c - p.pairs : c + p.pairs;
#endif
      f32 part = rows[warp * DIM + other] * sine[i];
      turned[i] = w_fma(x[i], cosine[i], second ? part : -part);
    }
  }
  if (is_query) {
    for (u32 i = 0; i < EACH; i++) {
      if (here && lane + 32u * i < DIM) put(p.out + (token * p.heads + head) * DIM + lane + 32u * i, turned[i]);
    }
  }
  w_workgroupBarrier();
  for (u32 i = 0; i < EACH; i++) {
    if (lane + 32u * i < DIM) rows[warp * DIM + lane + 32u * i] = turned[i];
  }
  w_workgroupBarrier();
  if (is_query || !here) return;
  u32 words = DIM / 2u, to = (page * p.key_heads + head) * (2u * PAGE * words), column = position % PAGE;
  for (u32 w = lane; w < words; w += 32u) {
    u32 word = halves(rows[warp * DIM + 2u * w], rows[warp * DIM + 2u * w + 1u]);
    state[is_value ? to + PAGE * words + column * words + w : to + w * PAGE + column] = word;
  }
}
