// attention_paged: softmax(q kᵀ * scale) v over the keys and values that a sequence has in the pages of a state.
//
// Meaning  weft/ops/paged.py
// Layout   q [T, heads, dim]; positions [T], segments [B+1], pages [B, max_pages]; the state as lib/pages; dim at most 512
//          with REACH i32 [T] the last key that a token sees, its own or a later one
// Method   a team of 64 lanes takes a block of 64 keys: a lane scores one key, then takes every 64th word of channels.
//          Blocks begin at multiples of 64 of the sequence and are joined in order (lib/join), so that the order depends
//          on the sequence only. One workgroup a query and head, of four teams with four blocks at a time; or, with
//          PARTS, one workgroup of one team a block, which leaves its part to attention_join
//          Of i8r and i4r rows are turned: queries too, and results back (with PARTS by attention_join)
// Bound    memory
#include group
#include math
#include pages
#include sequence
#if KV == f16
#include half
#endif
#include join
#if TURNED
#include walsh
#endif
#bind state: array<u32>
#if SINKS
#bind sinks: array<f32>
#endif
#if PARTS
#params parts, blocks
#endif
#if REACH
#params reach
#endif
#params q, positions, segments, pages, out, tokens, sequences, max_pages, heads, key_heads, dim, window, scale: f32, cap: f32

const LANES = 64u;
const TEAMS = {{TEAMS}}u;
const ALL = {{ALL}}u;  // lanes
const EACH = {{EACH}}u;  // channels that are read at once
#if KV == i4r
const STORED = ({{WORDS}}u + 1u) / 2u;  // words of a row: two times four codes in each
#else
const STORED = {{WORDS}}u;
#endif
var<workgroup> query: array<f32, 512>;
var<workgroup> lanes: array<f32, ALL>;
var<workgroup> shares: array<f32, ALL>;
var<workgroup> joined: array<f32, {{JOINED}}>;  // [team][channel]
var<workgroup> extremes: array<vec2<f32>, TEAMS>;
var<workgroup> bounds: vec3<u32>;  // the row of the page table, how many keys are seen, and how many are not later

fn team_sum(at: u32, value: f32) -> f32 {
  lanes[at] = value;
  workgroupBarrier();
  for (var step = 32u; step > 0u; step = step >> 1u) {
    if (at % LANES < step) { lanes[at] = lanes[at] + lanes[at + step]; }
    workgroupBarrier();
  }
  let total = lanes[at / LANES * LANES];
  workgroupBarrier();
  return total;
}

fn team_max(at: u32, value: f32) -> f32 {
  lanes[at] = value;
  workgroupBarrier();
  for (var step = 32u; step > 0u; step = step >> 1u) {
    if (at % LANES < step) { lanes[at] = max(lanes[at], lanes[at + step]); }
    workgroupBarrier();
  }
  let largest = lanes[at / LANES * LANES];
  workgroupBarrier();
  return largest;
}

// The channels of a word, or of half of one.
#if KV == f32
fn channels(word: u32) -> f32 { return bitcast<f32>(word); }
#endif
#if KV == f16
fn channels(word: u32) -> vec2<f32> { return widened2(word); }
#endif
#if KV == bf16
fn channels(word: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u)); }
#endif
#if KV == i8|i8r
fn channels(word: u32) -> vec4<f32> {
  let i = bitcast<i32>(word);
  return vec4<f32>(f32((i << 24u) >> 24u), f32((i << 16u) >> 24u), f32((i << 8u) >> 24u), f32(i >> 24u));
}
#endif

#if KV == i4r
// What a code stands for: LEVELS in weft/ops/state.py.
fn level(code: u32) -> f32 {
  let four = select(select(0xc6b5a081u, 0xfaeee1d4u, (code & 4u) != 0u), select(0x2c1f1206u, 0x7f604b3au, (code & 4u) != 0u), (code & 8u) != 0u);
  return f32(bitcast<i32>(four << (24u - 8u * (code & 3u))) >> 24u);
}

fn channels(word: u32) -> vec4<f32> {
  return vec4<f32>(level(word & 15u), level((word >> 4u) & 15u), level((word >> 8u) & 15u), level((word >> 12u) & 15u));
}

fn key_word(page: u32, w: u32, column: u32) -> u32 { return state[page + (w >> 1u) * PAGE + column] >> (16u * (w & 1u)); }
fn value_word(row: u32, w: u32) -> u32 { return state[row + (w >> 1u)] >> (16u * (w & 1u)); }
#else
fn key_word(page: u32, w: u32, column: u32) -> u32 { return state[page + w * PAGE + column]; }
fn value_word(row: u32, w: u32) -> u32 { return state[row + w]; }
#endif

// A score with one more word of a key.
fn with_key(dot: f32, w: u32, k: {{CHANNELS}}) -> f32 {
#if KV == f32
  return fma(query[w], k, dot);
#endif
#if KV == f16|bf16
  return fma(query[2u * w + 1u], k.y, fma(query[2u * w], k.x, dot));
#endif
#if KV == i8|i8r|i4r
  let first = fma(query[4u * w + 1u], k.y, fma(query[4u * w], k.x, dot));
  return fma(query[4u * w + 3u], k.w, fma(query[4u * w + 2u], k.z, first));
#endif
}

@compute @workgroup_size({{ALL}})
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
#if PARTS
  let group = group_of(at, groups) / p.blocks;
#else
  let group = group_of(at, groups);
#endif
  if (group >= p.tokens * p.heads) { return; }
  let token = group / p.heads;
  let head = group % p.heads;
  let team = index / LANES;
  let lane = index % LANES;
  let words = {{WORDS}}u;
  if (index == 0u) {
    let own = u32(n(p.positions + token)) + 1u;
    bounds = vec3<u32>(p.pages + sequence_of(token, p.segments, p.sequences) * p.max_pages, own, own);
#if REACH
    bounds.y = u32(n(p.reach + token)) + 1u;
#endif
  }
  for (var c = index; c < words * EACH; c += ALL) {
    query[c] = 0.0;
    if (c < p.dim) { query[c] = f(p.q + group * p.dim + c); }
  }
#if TURNED
  for (var c = index; c < p.dim; c += ALL) { turning[c] = f(p.q + group * p.dim + c); }
  turn(index, ALL, p.dim);
  for (var c = index; c < p.dim; c += ALL) { query[c] = turning[c]; }
#endif
  let seen = workgroupUniformLoad(&bounds);
  let each = head_words(p.dim);
  let of_head = head / (p.heads / p.key_heads) * each;
  let page_words = p.key_heads * each;
  let end = seen.y;
  var begin = 0u;
  if (p.window > 0u && seen.z > p.window) { begin = seen.z - p.window; }
#if PARTS
  let first = group_of(at, groups) % p.blocks * LANES;
  if (first >= end || first + LANES <= begin) { return; }
#else
  var joint = Joint(NEVER, 0.0, vec2<f32>());
  for (var first = begin / LANES * LANES; first < end; first += TEAMS * LANES) {
#endif
    let block = first + team * LANES;
    let key = block + lane;
    var first_page = 0u;
    var second_page = 0u;
    if (block < end) { first_page = u32(n(seen.x + block / PAGE)) * page_words + of_head; }
    if (block + PAGE < end) { second_page = u32(n(seen.x + block / PAGE + 1u)) * page_words + of_head; }
    var score = NEVER;
    var value_scale = 1.0;
    if (key >= begin && key < end) {
      let place = select(first_page, second_page, lane >= PAGE);
      let column = key % PAGE;
      var dot = 0.0;
      for (var w0 = 0u; w0 < {{CHUNKS}}u * 16u; w0 += 16u) {  // sixteen are read before any is used
#each i 16
        let k{{i}} = channels(key_word(place, w0 + {{i}}u, column));
#end
#each i 16
        dot = with_key(dot, w0 + {{i}}u, k{{i}});
#end
      }
      for (var w = {{CHUNKS}}u * 16u; w < {{WORDS}}u; w++) {
        dot = with_key(dot, w, channels(key_word(place, w, column)));
      }
#if KV == i8|i8r|i4r
      dot = dot * bitcast<f32>(state[place + 2u * PAGE * STORED + column]);
      value_scale = bitcast<f32>(state[place + 2u * PAGE * STORED + PAGE + column]);
#endif
      score = dot * p.scale;
      if (p.cap > 0.0) { score = p.cap * tanh_(score / p.cap); }
    }
    let largest = team_max(index, score);
    let share = select(exp_(score - largest), 0.0, score == NEVER);
    shares[index] = share * value_scale;
    let total = team_sum(index, share);
    var count = 0u;
    if (block < end) { count = min(LANES, end - block); }
    var skipped = 0u;
    if (begin > block) { skipped = min(begin - block, count); }
    for (var s = 0u; s < {{SLOTS}}u; s++) {
      let w = lane + s * LANES;
      var sum = {{CHANNELS}}();
      if (w < words) {
        for (var j0 = skipped / 16u * 16u; j0 < count; j0 += 16u) {
          let first_row = select(first_page, second_page, j0 >= PAGE) + (PAGE + j0 % PAGE) * STORED;
#each i 16
          var v{{i}} = {{CHANNELS}}();
          if (j0 + {{i}}u < count && j0 + {{i}}u >= skipped) { v{{i}} = channels(value_word(first_row + {{i}}u * STORED, w)); }
#end
#each i 16
          sum = fma({{CHANNELS}}(shares[team * LANES + j0 + {{i}}u]), v{{i}}, sum);
#end
        }
#if KV == f32
        joined[team * {{WIDTH}}u + w] = sum;
#else
        for (var j = 0u; j < EACH; j++) { joined[team * {{WIDTH}}u + w * EACH + j] = sum[j]; }
#endif
      }
    }
    if (lane == 0u) { extremes[team] = vec2<f32>(largest, total); }
    workgroupBarrier();
#if PARTS
  let part = p.parts + (group * p.blocks + first / LANES) * (p.dim + 2u);
  if (index == 0u) {
    put(part, largest);
    put(part + 1u, total);
  }
  for (var c = index; c < p.dim; c += ALL) { put(part + 2u + c, joined[c]); }
#else
    for (var t = 0u; t < TEAMS; t++) {  // an invocation keeps channels index and index + 256
      if (first + t * LANES < end) {
        var values = vec2<f32>();
        if (index < p.dim) { values.x = joined[t * {{WIDTH}}u + index]; }
        if (index + ALL < p.dim) { values.y = joined[t * {{WIDTH}}u + index + ALL]; }
        joint = join(joint, extremes[t].x, extremes[t].y, values);
      }
    }
    workgroupBarrier();
  }
#if SINKS
  var result = shared_with(joint, sinks[head]);
#else
  var result = joint.sums / joint.total;
#endif
#if TURNED
  if (index < p.dim) { turning[index] = result.x; }
  if (index + ALL < p.dim) { turning[index + ALL] = result.y; }
  turn(index, ALL, p.dim);
  if (index < p.dim) { result.x = turning[index]; }
  if (index + ALL < p.dim) { result.y = turning[index + ALL]; }
#endif
  if (index < p.dim) { put(p.out + group * p.dim + index, result.x); }
  if (index + ALL < p.dim) { put(p.out + group * p.dim + index + ALL, result.y); }
#endif
}
