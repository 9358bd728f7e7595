// attend_row: of one row, x + W2 attention(W n), n the rms_norm of x: a layer's attention, its products and its cache.
//
// Meaning  weft/ops/matmul.py, weft/ops/rope.py, weft/ops/paged.py
// Layout   rows of queries, keys and values follow each other in `weight`, from row `start` on; the state as lib/pages, in
//          f16; heads that share keys have 256 channels together; more in lib/two_products
// Method   a cluster has the heads that share keys. All of its workgroups get the queries, keys and values and turn the
//          queries; the one with the last block of 64 keys turns the new key and writes the cache. Eight warps take a block
//          and send its part to all; every workgroup joins parts in order. Bits are those of attention_pages
// Bound    memory
#params heads, key_heads, positions, pages, table, window, scale: f32, cap: f32, q_eps: f32, k_eps: f32
#include two_products
#bind rw state: array<u32>
#if NORMED
#bind q_gain: array<f32>
#bind k_gain: array<f32>
#endif
const PAGE = 32u;
const KEYS = 64u;
const DIM = {{DIM}}u;
const HALF_DIM = DIM / 2u;
const PAIRS = {{PAIRS}}u;
const STEPS = DIM / 16u;
const GROUP = {{GROUP}}u;
const PER = (DIM + 31u) / 32u;
const ALL_ROWS = (GROUP + 2u) * DIM;
const TEAMS = 2u;  // of eight warps, which take a block at once
const PART_WORDS = GROUP * (DIM + 2u);
const NEVER = -3.0e38;
var<workgroup> raw_rows: array<f32, {{ALL}}>;  // queries, key, value
var<workgroup> packed: array<u32, {{ALL}}>;    // [query][near or rest][channel / 2], then the key and the value as halves
var<workgroup> inverses: array<f32, 16>;       // of queries
var<workgroup> table: array<f32, {{DIM}}>;     // cosines, sines
var<workgroup> gains: array<f32, {{TWO_DIMS}}>;  // of queries and keys
var<workgroup> tops16: array<f32, 128>;        // [team][eight keys][row]
var<workgroup> kept_shares: array<f32, {{BLOCKS_AT_ONCE}}>;  // [query][block]
var<workgroup> added_shares: array<f32, {{BLOCKS_AT_ONCE}}>;
var<workgroup> totals: array<f32, {{BLOCKS_AT_ONCE}}>;

FN u32 row_of(u32 row) {
  u32 here = blockIdx.x % TOGETHER * OWN_ROWS + row, key_head = blockIdx.x / TOGETHER;
  if (here < GROUP * DIM) return p.start + key_head * (GROUP * DIM) + here;
  u32 part = (here - GROUP * DIM) / DIM;
  return p.start + (p.heads + part * p.key_heads + key_head) * DIM + (here - GROUP * DIM) % DIM;
}

FN f32 row_max(f32 value) {
  value = w_max(value, from_lane(value, 1u));
  return w_max(value, from_lane(value, 2u));
}
FN f32 row_sum(f32 value) {
  value = value + from_lane(value, 1u);
  return value + from_lane(value, 2u);
}
// The words of a block of keys that a lane multiplies: a warp scores eight keys, and adds up 16 channels.
struct Block { keys: array<u32, {{KEY_WORDS}}>, values: array<u32, 16> }

FN vec2<u32> pages_of(u32 block, u32 end) {
  u32 entry = p.pages + block / PAGE;
  return vec2<u32>(u32(n(entry)), end - block > PAGE ? u32(n(entry + 1u)) : 0u);
}

FN Block block_of(u32 block, u32 end, vec2<u32> pages, u32 key_head, u32 tile, u32 g, u32 t) {
  Block found;
  u32 left = w_min(end - block, KEYS), each_words = 2u * PAGE * HALF_DIM, page_words = p.key_heads * each_words;
  u32 first_page = pages.x * page_words + key_head * each_words, second_page = pages.y * page_words + key_head * each_words;
  u32 key = w_min(tile * 8u + g, left - 1u);
  u32 from = (key < PAGE ? first_page : second_page) + key % PAGE + t * PAGE;
#pragma unroll
  for (u32 s = 0; s < 2u * STEPS; s++) found.keys[s] = state[from + s * 4u * PAGE];
#pragma unroll
  for (u32 k = 0; k < 16; k++) {
    u32 wanted = k / 4u * 16u + 2u * t + k % 4u / 2u * 8u + k % 2u, here = w_min(wanted, left - 1u);
    u32 row = (here < PAGE ? first_page : second_page) + (PAGE + here % PAGE) * HALF_DIM + g;
    found.values[k] = tile < STEPS ? state[row + tile * 8u] : 0u;
  }
  return found;
}

// Parts of blocks, where lots of the first weight were.
FN f32* part_of(u32 block) { return (f32*)&slots[0] + block * PART_WORDS; }

// At the end of that memory: shares of keys, [team][eight keys][two][lane], as they are and as near and rest.
FN f32* rests_of(u32 team) { return (f32*)&slots[{{SECOND_AT}}u - 512u] + team * 512u; }
FN u32* shares_of(u32 team) { return (u32*)&slots[{{SECOND_AT}}u - 256u] + team * 512u; }



// The new key and value, which the cache did not have when the block was read; values beyond the end are zeros.
FN void with_new(Block& block, u32 here, u32 tile, u32 g, u32 t) {
  u32 key = GROUP * DIM, value = packed[key + HALF_DIM + w_min(tile, STEPS - 1u) * 8u + g];
  if (tile * 8u + g >= here) {  // those beyond the end are the last one's
#pragma unroll
    for (u32 s = 0; s < 2u * STEPS; s++) block.keys[s] = packed[key + s * 4u + t];
  }
#pragma unroll
  for (u32 k = 0; k < 16; k++) {
    u32 wanted = k / 4u * 16u + 2u * t + k % 4u / 2u * 8u + k % 2u;
    if (wanted >= here) block.values[k] = wanted == here ? value : 0u;
  }
}

// Queries, key or value `which` of the cluster after its norm and rotation, in 16 bits, by a warp.
FN void turn(u32 which, u32 lane) {
  f32 x[PER];
  bool is_query = which < GROUP, is_value = which == GROUP + 1u;
#pragma unroll
  for (u32 i = 0; i < PER; i++) x[i] = lane + 32u * i < DIM ? raw_rows[which * DIM + lane + 32u * i] : 0.0;
#if NORMED
  if (!is_value) {
    f32 even = 0, odd = 0;
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
      if (i % 2u == 0u) even = w_fma(x[i], x[i], even);
      else odd = w_fma(x[i], x[i], odd);
    }
    f32 total = even + odd;
    for (u32 mask = 16u; mask > 0u; mask /= 2u) total = total + from_lane(total, mask);
    f32 root = w_sqrt(total / f32(DIM) + (is_query ? p.q_eps : p.k_eps));
#pragma unroll
    for (u32 i = 0; i < PER; i++) {
      u32 c = lane + 32u * i;
      if (c < DIM) {
        x[i] = x[i] / root * gains[is_query ? c : DIM + c];
        raw_rows[which * DIM + c] = x[i];
      }
    }
  }
  warp_wait();
#endif
  f32 turned[PER], largest = 0;
#pragma unroll
  for (u32 i = 0; i < PER; i++) {
    u32 c = lane + 32u * i;
    turned[i] = x[i];
    if (!is_value && c < 2u * PAIRS) {
#if INTERLEAVED
      bool second = c % 2u == 1u;
      u32 pair = c / 2u, other = c ^ 1u;
#else
      bool second = c >= PAIRS;
      u32 pair = c % PAIRS, other = second ? c - PAIRS : c + PAIRS;
#endif
      f32 part = raw_rows[which * DIM + other] * table[PAIRS + pair];
      turned[i] = w_fma(x[i], table[pair], second ? part : -part);
    }
    largest = larger(largest, bitcast<u32>(turned[i]));
  }
  warp_wait();
#pragma unroll
  for (u32 i = 0; i < PER; i++) {
    if (lane + 32u * i < DIM) raw_rows[which * DIM + lane + 32u * i] = turned[i];
  }
  warp_wait();
  if (is_query) largest = largest_of_warp(largest);
  f32 scale = scale_for(largest);
  if (is_query && lane == 0u) inverses[which] = inverse_of(largest);
#pragma unroll
  for (u32 i = 0; i < (HALF_DIM + 31u) / 32u; i++) {
    u32 word = lane + 32u * i;
    if (word >= HALF_DIM) continue;
    f32 one = raw_rows[which * DIM + 2u * word], two = raw_rows[which * DIM + 2u * word + 1u];
    if (is_query) {
      u32 found[PARTS];
      split_pair(one * scale, two * scale, found);
      packed[which * DIM + word] = found[0];
      packed[which * DIM + HALF_DIM + word] = found[1];
    } else {
      packed[GROUP * DIM + (which - GROUP) * HALF_DIM + word] = halves(one, two);
    }
  }
}

// A block's part for the cluster's heads, by a team.
FN void attend(const Block& block, u32 at, u32 first, u32 end, u32 begin, u32 team, u32 tile, u32 lane) {
  u32 g = lane / 4u, t = lane % 4u, own = w_min(g, GROUP - 1u) * DIM + t;
  bool here = g < GROUP;
  f32 dots[4] = {0, 0, 0, 0}, rest[4] = {0, 0, 0, 0};
#pragma unroll
  for (u32 s = 0; s < STEPS; s++) {
    u32 a = packed[own + s * 8u], b = packed[own + s * 8u + 4u];
    u32 c = packed[own + HALF_DIM + s * 8u], d = packed[own + HALF_DIM + s * 8u + 4u];
    u32 query[4] = {here ? a : 0u, 0, here ? b : 0u, 0}, less[4] = {here ? c : 0u, 0, here ? d : 0u, 0};
    mma_f16(dots, query, block.keys[2u * s], block.keys[2u * s + 1u]);
    mma_f16(rest, less, block.keys[2u * s], block.keys[2u * s + 1u]);
  }
  f32 largest = NEVER, scores[2];
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    u32 key = first + tile * 8u + 2u * t + i;
    f32 score = (dots[i] + rest[i]) * inverses[w_min(g, GROUP - 1u)] * p.scale;
    if (p.cap > 0.0) score = p.cap * tanh_(score / p.cap);
    scores[i] = here && key >= begin && key < end ? score : NEVER;
    largest = w_max(largest, scores[i]);
  }
  largest = row_max(largest);
  if (t == 0u) tops16[team * 64u + tile * 8u + g] = largest;
  team_wait(2u + team, LANES / TEAMS);
  largest = tops16[team * 64u + g];
#pragma unroll
  for (u32 i = 1; i < 8; i++) largest = w_max(largest, tops16[team * 64u + i * 8u + g]);
  f32* rests = rests_of(team);
  u32* shares = shares_of(team);
  u32 mine = tile * 64u + lane;
#pragma unroll
  for (u32 i = 0; i < 2; i++) {
    scores[i] = scores[i] == NEVER ? 0.0 : exp_(scores[i] - largest);
    rests[mine + i * 32u] = scores[i];
  }
  u32 near = halves(scores[0], scores[1]);
  vec2<f32> round = w_unpack2x16float(near);
  shares[mine] = near;
  shares[mine + 32u] = halves(scores[0] - round.x, scores[1] - round.y);
  team_wait(2u + team, LANES / TEAMS);
  f32* place = part_of(at) + w_min(g, GROUP - 1u) * (DIM + 2u);
  if (tile < STEPS) {
    f32 even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
#pragma unroll
    for (u32 k = 0; k < 4; k++) {  // sixteen keys
      u32 from = k * 128u + lane;
      u32 nears[4] = {shares[from], 0, shares[from + 64u], 0}, less[4] = {shares[from + 32u], 0, shares[from + 96u], 0};
      u32 a = block.values[4u * k], b = block.values[4u * k + 1u], c = block.values[4u * k + 2u], d = block.values[4u * k + 3u];
      mma_f16(even, nears, bytes_of(a, b, 0x5410u), bytes_of(c, d, 0x5410u));
      mma_f16(odd, nears, bytes_of(a, b, 0x7632u), bytes_of(c, d, 0x7632u));
      mma_f16(even, less, bytes_of(a, b, 0x5410u), bytes_of(c, d, 0x5410u));
      mma_f16(odd, less, bytes_of(a, b, 0x7632u), bytes_of(c, d, 0x7632u));
    }
    if (here) {
#pragma unroll
      for (u32 i = 0; i < 2; i++) {
        place[2u + tile * 16u + 4u * t + 2u * i] = even[i];
        place[3u + tile * 16u + 4u * t + 2u * i] = odd[i];
      }
    }
  }
  if (tile == 7u) {  // as four warps of 16 keys add up
    f32 four[4];
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      u32 from = i * 128u + lane;
      four[i] = row_sum(((rests[from] + rests[from + 32u]) + rests[from + 64u]) + rests[from + 96u]);
    }
    if (here && t == 0u) {
      place[0] = largest;
      place[1] = (four[0] + four[1]) + (four[2] + four[3]);
    }
  }
  sendable();
  team_wait(2u + team, LANES / TEAMS);
  if (tile == 0u && lane < TOGETHER && lane != at % TOGETHER) send_all(part_of(at), lane, part_of(at), 4u * PART_WORDS, &gates[2]);
}

// The shares of blocks from `first` on in what they add up to, a lane each; the largest score up to the last one.
FN f32 weigh(u32 head, u32 first, u32 blocks, f32 before, u32 lane) {
  u32 mine = w_min(first + lane, blocks - 1u);
  const f32* from = part_of(mine) + head * (DIM + 2u);
  f32 largest = from[0], total = from[1], top = largest;
#pragma unroll
  for (u32 apart = 1; apart < 32u; apart *= 2u) {
    f32 other = from_lower(top, apart);
    if (lane >= apart) top = w_max(top, other);
  }
  top = w_max(top, before);
  f32 lower = from_lower(top, 1u), earlier = lane == 0u ? before : lower, added = exp_(largest - top);
  kept_shares[head * 32u + lane] = exp_(earlier - top);
  added_shares[head * 32u + lane] = added;
  totals[head * 32u + lane] = total * added;
  return from_last(top);
}

@compute @cluster_size(8) @workgroup_size(ALL_LANES)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 group = group_of(at, groups), key_head = group / TOGETHER, rank = group % TOGETHER;
  u32 lane = index % 32u, tile = index / 32u % 8u, team = index / 256u, g = lane / 4u, t = lane % 4u;
  u32 end = u32(n(p.positions)) + 1u, begin = p.window > 0u && end > p.window ? end - p.window : 0u;
  u32 from_block = begin / KEYS, blocks = (end + KEYS - 1u) / KEYS - from_block;
  if (index >= LANES) {
    make_gates(lane, 4u * ALL_ROWS);
    u32 own = (blocks + TOGETHER - 1u - rank) / TOGETHER;
    if (lane == 0u) expect(&gates[2], 4u * PART_WORDS * (blocks - own));
    arrive();
    ask(lane, key_head, rank);
    all_arrived();
    return;
  }
  those_before_end();
  Own own = own_of(index, rank);
  f32 beside = index < 2u * PAIRS ? f(p.table + index) : 0.0;
#if NORMED
  f32 gain_here = index < 2u * DIM ? (index < DIM ? q_gain[index] : k_gain[index - DIM]) : 0.0;
#endif
  arrive();
  u32 mine = team * TOGETHER + rank;  // of the blocks
  Block block;
  vec2<u32> pages = mine < blocks ? pages_of((from_block + mine) * KEYS, end) : vec2<u32>(0u, 0u);
  give_x(own, index, key_head, rank);
#if NORMED
  if (index < 2u * DIM) gains[index] = gain_here;
#endif
  if (index < 2u * PAIRS) table[index] = beside;
  split_x(own, index);
  if (mine < blocks) block = block_of((from_block + mine) * KEYS, end, pages, key_head, tile, g, t);
  multiply_first(index);
  for (u32 i = index; i < OWN_ROWS * TOGETHER; i += LANES) {
    u32 row = i % OWN_ROWS;
    send(&raw_rows[rank * OWN_ROWS + row], i / OWN_ROWS, first_of(row), &gates[1]);
  }
  those_after_begin();
  wait_for(&gates[1]);
  bool newest = (blocks - 1u) % TOGETHER == rank;
  if (index / 32u < GROUP + (newest ? 2u : 0u)) turn(index / 32u, lane);
  w_workgroupBarrier();
  while (mine < blocks) {
    if (mine + 1u == blocks) with_new(block, (end - 1u) % KEYS, tile, g, t);
    attend(block, mine, (from_block + mine) * KEYS, end, begin, team, tile, lane);
    mine += TEAMS * TOGETHER;
    if (mine < blocks) {
      pages = pages_of((from_block + mine) * KEYS, end);
      block = block_of((from_block + mine) * KEYS, end, pages, key_head, tile, g, t);
      team_wait(2u + team, LANES / TEAMS);
    }
  }
  if (newest) {
    u32 position = end - 1u, page = u32(n(p.pages + position / PAGE)), column = position % PAGE;
    u32 to = (page * p.key_heads + key_head) * (2u * PAGE * HALF_DIM);
    if (index < HALF_DIM) state[to + index * PAGE + column] = packed[GROUP * DIM + index];
    else if (index < DIM) state[to + PAGE * HALF_DIM + column * HALF_DIM + index - HALF_DIM] = packed[GROUP * DIM + index];
  }
  wait_for(&gates[2]);
  arrive();  // all parts are here
  w_workgroupBarrier();
  f32 sum = 0, total = 0, top = NEVER;
  u32 head = w_min(index / DIM, GROUP - 1u);
  for (u32 first = 0; first < blocks; first += 32u) {
    u32 warp = index / 32u, last_one = w_min(first + 32u, blocks);
    if (warp >= WARPS / 2u && warp < WARPS / 2u + GROUP) top = weigh(warp - WARPS / 2u, first, blocks, top, lane);
    w_workgroupBarrier();
    const f32* from = part_of(0) + head * (DIM + 2u) + 2u + index % DIM;
    for (u32 at = first; at < last_one; at += 8u) {
#pragma unroll
      for (u32 j = 0; j < 8; j++) {
        u32 here = head * 32u + at + j - first;
        f32 kept = kept_shares[here], more = totals[here], added = from[w_min(at + j, last_one - 1u) * PART_WORDS] * added_shares[here];
        if (at + j < last_one) {
          total = w_fma(total, kept, more);
          sum = w_fma(sum, kept, added);
        }
      }
    }
    w_workgroupBarrier();
  }
  if (index < GROUP * DIM) middle[index] = sum / total;
  w_workgroupBarrier();
  multiply_second(index, key_head, rank);
  all_arrived();  // and those that were sent have been read
}
