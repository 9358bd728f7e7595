// attention_pages: softmax(q kᵀ * scale) v over pages of halves, on matrix units.
//
// Meaning  weft/ops/paged.py
// Layout   q [T, heads, dim]; positions [T], segments [B+1], pages [B, max_pages]; the state as lib/pages, in f16; dim a
//          multiple of 16, at most 128
// Method   four warps take up to 16 queries that share keys: the heads of a group, and of neighbouring tokens of a sequence,
//          whose tiles begin at multiples of TOKENS of it; other workgroups end at once. Of a block of 64 keys a warp scores
//          16, and then adds up every fourth 16 channels. Blocks are joined in order; with BLOCK a workgroup takes one and
//          leaves its part, and the last one to end joins them, in the same order. Queries and shares are two halves each.
//          A row's result depends on its sequence only: what others have in a product are zeros
// Bound    caches
#include group
#include math
#include sequence
#include parts
#include split
#bind state: array<u32>
#if SINKS
#bind sinks: array<f32>
#endif
#if BLOCK
#params parts, blocks
#bind rw counters: array<u32>
#endif
#params q, positions, segments, pages, out, tokens, sequences, max_pages, heads, key_heads, dim, window, scale: f32, cap: f32

const PAGE = 32u;
const KEYS = 64u;
const DIM = {{DIM}}u;
const WORDS = {{DIM}}u / 2u;
const STEPS = {{DIM}}u / 16u;
const OWN = ({{DIM}}u / 16u + 3u) / 4u;  // of a warp
const GROUP = {{GROUP}}u;    // heads that share keys
const SHARE = {{SHARE}}u;    // of them in a tile
const TOKENS = {{TOKENS}}u;  // in a tile
const NEVER = -3.0e38;

#if BLOCK
struct Part { largest: f32, total: f32, sum: f32 }
#endif
struct Query { token: u32, head: u32, begin: u32, end: u32, active: bool }

// Row `row` of the tile that begins at `token`.
FN Query query_of(u32 row, u32 token, u32 last, u32 head0, u32 first_end) {
  Query found;
  found.token = token + row / SHARE;
  found.head = head0 + row % SHARE;
  found.active = row < SHARE * TOKENS && found.token < last && found.head / GROUP == head0 / GROUP;
  found.end = found.active ? first_end + row / SHARE : 0u;
  found.begin = p.window > 0u && found.end > p.window ? found.end - p.window : 0u;
  return found;
}

FN f32 scored(f32 dot, f32 inverse, u32 key, const Query& query) {
  f32 score = dot * inverse * p.scale;
  if (p.cap > 0.0) score = p.cap * tanh_(score / p.cap);
  return query.active && key >= query.begin && key < query.end ? score : NEVER;
}

// Over the four lanes that share a row.
FN f32 row_max(f32 value) {
  value = w_max(value, from_lane(value, 1u));
  return w_max(value, from_lane(value, 2u));
}
FN f32 row_sum(f32 value) {
  value = value + from_lane(value, 1u);
  return value + from_lane(value, 2u);
}

var<workgroup> tops16: array<f32, 64>;    // [warp][row]
var<workgroup> shares16: array<f32, 64>;
var<workgroup> weights: array<u32, 1024>;  // [keys / 16][near or rest, of four][lane]
#if BLOCK
var<workgroup> ended: u32;
#endif

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 group = group_of(at, groups), lane = index % 32u, warp = index / 32u;
#if BLOCK
  u32 first_block = group % p.blocks * KEYS;
  group = group / p.blocks;
#endif
  u32 shares = (GROUP + SHARE - 1u) / SHARE, each = p.key_heads * shares;
  u32 token = group / each;
  if (token >= p.tokens) return;
  u32 key_head = group % each / shares, head0 = key_head * GROUP + group % each % shares * SHARE;
  u32 first_end = u32(n(p.positions + token)) + 1u;  // positions of a sequence's tokens follow each other
  u32 sequence = sequence_of(token, p.segments, p.sequences), last = token + 1u;
  if (TOKENS > 1u) {
    last = u32(n(p.segments + sequence + 1u));
    if ((token - u32(n(p.segments + sequence))) % TOKENS != 0u) return;
  }
  u32 g = lane / 4u, t = lane % 4u;
  Query rows[2] = {query_of(g, token, last, head0, first_end), query_of(g + 8u, token, last, head0, first_end)};
  u32 end = first_end + w_min(TOKENS, last - token) - 1u;
  u32 begin = p.window > 0u && first_end > p.window ? first_end - p.window : 0u;
#if BLOCK
  // Asked for before it is known whether this block is seen: a table has entries of pages that are not there, too.
  u32 own_table = p.pages + sequence * p.max_pages, page0 = first_block / PAGE;
  u32 own_pages[2] = {page0 < p.max_pages ? u32(n(own_table + page0)) : 0u,
                      page0 + 1u < p.max_pages ? u32(n(own_table + page0 + 1u)) : 0u};
#endif
#if BLOCK
  if (first_block >= end || first_block + KEYS <= begin) return;
#endif
  // Queries: times a power of two, as two halves.
  u32 query[STEPS][4], less[STEPS][4];
  f32 inverse[2];
#pragma unroll
  for (u32 r = 0; r < 2; r++) {
    u32 from = p.q + (rows[r].token * p.heads + rows[r].head) * DIM + 2u * t;
    f32 values[STEPS][4], largest = 0;
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
      for (u32 i = 0; i < 4; i++) {
        values[s][i] = rows[r].active ? f(from + s * 16u + i / 2u * 8u + i % 2u) : 0.0;
        largest = larger(largest, bitcast<u32>(values[s][i]));
      }
    }
    largest = larger(largest, bitcast<u32>(from_lane(largest, 1u)));
    largest = larger(largest, bitcast<u32>(from_lane(largest, 2u)));
    f32 scale = scale_for(largest);
    inverse[r] = inverse_of(largest);
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
      for (u32 half = 0; half < 2; half++) {
        u32 two[PARTS];
        split_pair(values[s][2 * half] * scale, values[s][2 * half + 1] * scale, two);
        query[s][2 * half + r] = two[0];
        less[s][2 * half + r] = two[1];
      }
    }
  }
  f32 sums[OWN][2][4], top[2] = {NEVER, NEVER}, total[2] = {0, 0};
  for (u32 s = 0; s < OWN; s++) {
    for (u32 i = 0; i < 8; i++) sums[s][i / 4][i % 4] = 0;
  }
  u32 each_words = 2u * PAGE * WORDS, page_words = p.key_heads * each_words;
#if BLOCK
  for (u32 block = first_block; block == first_block; block += KEYS) {
#else
  for (u32 block = begin / KEYS * KEYS; block < end; block += KEYS) {
#endif
    u32 left = w_min(end - block, KEYS);
#if BLOCK
    u32 first_page = own_pages[0], second_page = left > PAGE ? own_pages[1] : own_pages[0];
#else
    u32 table = p.pages + sequence * p.max_pages + block / PAGE;
    u32 first_page = u32(n(table)), second_page = left > PAGE ? u32(n(table + 1u)) : first_page;
#endif
    first_page = first_page * page_words + key_head * each_words;
    second_page = second_page * page_words + key_head * each_words;
    // All words are asked for at once; those of keys beyond the end are the last one's and count for nothing.
    u32 keys[2][STEPS][2], values[OWN][4][4];
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      u32 key = w_min(warp * 16u + j * 8u + g, left - 1u);
      u32 from = (key < PAGE ? first_page : second_page) + key % PAGE + t * PAGE;
#pragma unroll
      for (u32 s = 0; s < STEPS; s++) {
        keys[j][s][0] = state[from + s * 8u * PAGE];
        keys[j][s][1] = state[from + (s * 8u + 4u) * PAGE];
      }
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32 wanted = k * 16u + 2u * t + i / 2u * 8u + i % 2u, key = w_min(wanted, left - 1u);
        u32 from = (key < PAGE ? first_page : second_page) + (PAGE + key % PAGE) * WORDS + g;
#pragma unroll
        for (u32 s = 0; s < OWN; s++) {
          u32 word = (warp + 4u * s < STEPS) ? state[from + (warp + 4u * s) * 8u] : 0u;
          values[s][k][i] = wanted < left ? word : 0u;
        }
      }
    }
    f32 scores[2][4], largest[2] = {NEVER, NEVER}, share[2] = {0, 0};
#pragma unroll
    for (u32 j = 0; j < 2; j++) {
      f32 rest[4] = {0, 0, 0, 0};  // two chains are done sooner than one
      for (u32 i = 0; i < 4; i++) scores[j][i] = 0;
#pragma unroll
      for (u32 s = 0; s < STEPS; s++) {
        mma_f16(scores[j], query[s], keys[j][s][0], keys[j][s][1]);
        mma_f16(rest, less[s], keys[j][s][0], keys[j][s][1]);
      }
      for (u32 i = 0; i < 4; i++) {
        scores[j][i] = scored(scores[j][i] + rest[i], inverse[i / 2], block + warp * 16u + j * 8u + 2u * t + i % 2, rows[i / 2]);
        largest[i / 2] = w_max(largest[i / 2], scores[j][i]);
      }
    }
    for (u32 r = 0; r < 2; r++) {
      largest[r] = row_max(largest[r]);
      if (t == 0u) tops16[warp * 16u + r * 8u + g] = largest[r];
    }
    w_workgroupBarrier();
    for (u32 r = 0; r < 2; r++) {
      u32 row = r * 8u + g;
      largest[r] = w_max(w_max(tops16[row], tops16[16u + row]), w_max(tops16[32u + row], tops16[48u + row]));
    }
    for (u32 j = 0; j < 2; j++) {
      for (u32 i = 0; i < 4; i++) {
        scores[j][i] = scores[j][i] == NEVER ? 0.0 : exp_(scores[j][i] - largest[i / 2]);
        share[i / 2] = share[i / 2] + scores[j][i];
      }
    }
    for (u32 r = 0; r < 2; r++) {
      share[r] = row_sum(share[r]);
      if (t == 0u) shares16[warp * 16u + r * 8u + g] = share[r];
    }
    for (u32 i = 0; i < 4; i++) {  // rows g, g + 8 of eight keys, then of the next eight
      f32 one = scores[i / 2][i % 2 * 2], two = scores[i / 2][i % 2 * 2 + 1];
      u32 near = halves(one, two);
      vec2<f32> round = w_unpack2x16float(near);
      weights[(warp * 8u + i) * 32u + lane] = near;
      weights[(warp * 8u + 4u + i) * 32u + lane] = halves(one - round.x, two - round.y);
    }
    w_workgroupBarrier();
    f32 kept[2], added[2];
    for (u32 r = 0; r < 2; r++) {
      u32 row = r * 8u + g;
      share[r] = (shares16[row] + shares16[16u + row]) + (shares16[32u + row] + shares16[48u + row]);
      f32 next = w_max(top[r], largest[r]);
      kept[r] = exp_(top[r] - next);
      added[r] = exp_(largest[r] - next);
      total[r] = w_fma(total[r], kept[r], share[r] * added[r]);
      top[r] = next;
    }
    f32 part[OWN][2][4];
    for (u32 s = 0; s < OWN; s++) {
      for (u32 i = 0; i < 8; i++) part[s][i / 4][i % 4] = 0;
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
      u32 near[4], rest[4];
      for (u32 i = 0; i < 4; i++) {
        near[i] = weights[(k * 8u + i) * 32u + lane];
        rest[i] = weights[(k * 8u + 4u + i) * 32u + lane];
      }
#pragma unroll
      for (u32 s = 0; s < OWN; s++) {
#pragma unroll
        for (u32 odd = 0; odd < 2; odd++) {  // even channels, then odd ones
          u32 chosen = odd ? 0x7632u : 0x5410u;
          u32 b0 = bytes_of(values[s][k][0], values[s][k][1], chosen);
          u32 b1 = bytes_of(values[s][k][2], values[s][k][3], chosen);
          mma_f16(part[s][odd], near, b0, b1);
          mma_f16(part[s][odd], rest, b0, b1);
        }
      }
    }
    for (u32 s = 0; s < OWN; s++) {
      for (u32 i = 0; i < 8; i++) {
        u32 r = i % 4 / 2;
        sums[s][i / 4][i % 4] = w_fma(sums[s][i / 4][i % 4], kept[r], part[s][i / 4][i % 4] * added[r]);
      }
    }
  }
  for (u32 r = 0; r < 2; r++) {
    u32 row = rows[r].token * p.heads + rows[r].head;
#if BLOCK
    u32 to = p.parts + (row * p.blocks + first_block / KEYS) * (DIM + 2u);
    if (rows[r].active && warp == 0u && t == 0u) {
      put(to, top[r]);
      put(to + 1u, total[r]);
    }
    to += 2u;
#else
    u32 to = p.out + row * DIM;
    f32 factor = 1.0, whole = total[r];
#if SINKS
    f32 sink = rows[r].active ? sinks[rows[r].head] : 0.0;
    f32 most = w_max(top[r], sink);
    factor = exp_(top[r] - most);
    whole = w_fma(total[r], factor, exp_(sink - most));
#endif
#endif
    for (u32 s = 0; s < OWN; s++) {
      for (u32 i = 0; i < 4; i++) {  // channels 4 t, 4 t + 1, 4 t + 2, 4 t + 3 of sixteen
        if (!rows[r].active || warp + 4u * s >= STEPS) continue;
        f32 value = sums[s][i % 2][2 * r + i / 2];
#if BLOCK
        put(to + (warp + 4u * s) * 16u + 4u * t + i, value);
#else
        put(to + (warp + 4u * s) * 16u + 4u * t + i, value * factor / whole);
#endif
      }
    }
  }
#if BLOCK
  // The last block of these queries joins all of them.
  u32 from_block = begin / KEYS, blocks_here = (end + KEYS - 1u) / KEYS - from_block;
  everybody_sees();
  w_workgroupBarrier();
  if (index == 0u) ended = add_one(counters + group, blocks_here);
  w_workgroupBarrier();
  if (ended + 1u != blocks_here) return;
  everybody_sees();
  constexpr u32 ITEMS = (SHARE * DIM + 127u) / 128u;  // channels of heads that a thread joins
  Part joint[ITEMS];
#pragma unroll
  for (u32 i = 0; i < ITEMS; i++) joint[i] = Part{NEVER, 0.0, 0.0};
  u32 first_row = token * p.heads + head0, channels = w_min(SHARE, (key_head + 1u) * GROUP - head0) * DIM;
  for (u32 first = from_block; first < from_block + blocks_here; first += 4u) {
    Part next[ITEMS][4];
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
      u32 item = w_min(index + i * 128u, channels - 1u), row = first_row + item / DIM;
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        u32 here = p.parts + (row * p.blocks + w_min(first + j, from_block + blocks_here - 1u)) * (DIM + 2u);
        next[i][j].largest = fresh(arena + here);
        next[i][j].total = fresh(arena + here + 1u);
        next[i][j].sum = fresh(arena + here + 2u + item % DIM);
      }
    }
#pragma unroll
    for (u32 i = 0; i < ITEMS; i++) {
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        if (first + j < from_block + blocks_here) joint[i] = joined(joint[i], next[i][j]);
      }
    }
  }
#pragma unroll
  for (u32 i = 0; i < ITEMS; i++) {
    u32 item = index + i * 128u;
    if (item < channels) {
#if SINKS
      f32 sink = sinks[head0 + item / DIM], most = w_max(joint[i].largest, sink), factor = exp_(joint[i].largest - most);
      f32 whole = w_fma(joint[i].total, factor, exp_(sink - most));
#else
      f32 factor = 1.0, whole = joint[i].total;
#endif
      put(p.out + first_row * DIM + item, joint[i].sum * factor / whole);
    }
  }
#endif
}

#if BLOCK
FN Part joined(const Part& before, const Part& next) {
  f32 top = w_max(before.largest, next.largest);
  f32 kept = exp_(before.largest - top), added = exp_(next.largest - top);
  return Part{top, w_fma(before.total, kept, next.total * added), w_fma(before.sum, kept, next.sum * added)};
}
#endif
