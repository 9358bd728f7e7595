// attention_whole: softmax(q kᵀ * scale) v within each sequence of a step, on matrix units.
//
// Meaning  weft/ops/attention.py
// Layout   q [T, heads, dim]; k, v [T, key_heads, dim], in f32, or with NARROW in bfloat16; segments i32 [B+1]; dim at most 128
// Method   a warp takes 16 queries of a head and sequence and 64 keys at a time, with a running maximum and sum, all in
//          registers. Sequence b has tiles of 16 from tile segments[b] / 16 + b on, so that a tile finds its sequence; some
//          are empty. Numbers are two of tf32, the upper bits and the rest; with PARTS == 1 one, rounded. A product's columns
//          may be in any order, as long as both operands have it: a lane takes eight channels that follow each other. With
//          BFLOAT operands are rounded to bfloat16 first, and q is times scale and log2(e) before. Blocks of keys begin at
//          multiples of 64 of a sequence, and what others of a tile see does not enter a row
// Bound    caches
#include group
#include math
#if SINKS
#bind sinks: array<f32>
#endif
#if TABLE
#bind bias: array<f32>
#bind buckets: array<f32>
#endif
#if BFLOAT
#params by: f32
#endif
#if CAPPED
#params cap: f32
#endif
#params q, k, v, segments, out, sequences, heads, key_heads, window, reach, scale: f32

const DIM = {{DIM}}u;
const PARTS = {{PARTS}}u;
const STEPS = ({{DIM}}u + 31u) / 32u;
const KEYS = 64u;
const NEVER = -3.0e38;

// As operands are.
FN f32 rounded(f32 value) {
#if BFLOAT
  return bitcast<f32>(bfloats(value, value) << 16u);
#else
  return value;
#endif
}

// Channel `c` of a row of numbers that begin at word `at`; beyond the end 0.
FN f32 number_at(u32 at, u32 row, u32 c) {
  if (c >= DIM) return 0.0;
#if NARROW
  u32 index = row * DIM + c, word = arena[at + index / 2u];
  return bitcast<f32>(index % 2u == 1u ? word & 0xffff0000u : word << 16u);
#else
  return f(at + row * DIM + c);
#endif
}

// COUNT channels from `c` on.
template <u32 COUNT>
FN void numbers_of(f32 (&found)[COUNT], u32 at, u32 row, u32 c) {
#if WHOLE
#if NARROW
#pragma unroll
  for (u32 i = 0; i < COUNT / 4u; i++) {
    uint2 four = *(const uint2*)(arena + at + (row * DIM + c) / 2u + 2u * i);
    found[4 * i] = bitcast<f32>(four.x << 16u);
    found[4 * i + 1] = bitcast<f32>(four.x & 0xffff0000u);
    found[4 * i + 2] = bitcast<f32>(four.y << 16u);
    found[4 * i + 3] = bitcast<f32>(four.y & 0xffff0000u);
  }
#else
#pragma unroll
  for (u32 i = 0; i < COUNT / 4u; i++) {
    uint4 four = *(const uint4*)(arena + at + row * DIM + c + 4u * i);
    found[4 * i] = bitcast<f32>(four.x);
    found[4 * i + 1] = bitcast<f32>(four.y);
    found[4 * i + 2] = bitcast<f32>(four.z);
    found[4 * i + 3] = bitcast<f32>(four.w);
  }
#endif
#else
  for (u32 i = 0; i < COUNT; i++) found[i] = number_at(at, row, c + i);
#endif
}

// A number as one or two of tf32.
FN u32 near_of(f32 value) {
  return PARTS == 1u ? bitcast<u32>(value) + 0x1000u & 0xffffe000u : bitcast<u32>(value) & 0xffffe000u;
}
FN u32 rest_of(f32 value, u32 near) { return bitcast<u32>(value - bitcast<f32>(near)); }

// Over the four lanes that share a row.
FN f32 row_max(f32 value) {
  value = w_max(value, from_lane(value, 1u));
  return w_max(value, from_lane(value, 2u));
}
FN f32 row_sum(f32 value) {
  value = value + from_lane(value, 1u);
  return value + from_lane(value, 2u);
}

@compute @workgroup_size(128)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) index: u32) {
  u32 group = group_of(at, groups), lane = index % 32u, g = lane / 4u, t = lane % 4u;
  u32 head = group % p.heads, tile = group / p.heads * 4u + index / 32u;
  u32 low = 0, high = p.sequences;
  while (low + 1u < high) {
    u32 middle = (low + high) / 2u;
    if (u32(n(p.segments + middle)) / 16u + middle <= tile) low = middle;
    else high = middle;
  }
  u32 start = u32(n(p.segments + low)), count = u32(n(p.segments + low + 1u)) - start;
  u32 first = (tile - start / 16u - low) * 16u;
  if (first >= count) return;
  u32 last = w_min(first + 15u, count - 1u), key_head = head / (p.heads / p.key_heads);
  u32 begin = 0, end = count;
#if CAUSAL
  end = last + 1u;
#endif
  if (p.window > 0u) {
    begin = first + 1u > p.window ? (first + 1u - p.window) / KEYS * KEYS : 0u;
    end = w_min(end, last + p.window);
  }
  f32 sums[STEPS][4][4], top[2] = {NEVER, NEVER}, total[2] = {0, 0};
#pragma unroll
  for (u32 s = 0; s < STEPS; s++) {
    for (u32 i = 0; i < 16; i++) sums[s][i / 4][i % 4] = 0;
  }
  for (u32 block = begin; block < end; block += KEYS) {
    u32 pairs = (w_min(end - block, KEYS) + 15u) / 16u;  // of eights of keys
    f32 scores[8][4];
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      for (u32 i = 0; i < 4; i++) scores[j][i] = 0;
    }
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
      u32 near[4][4], rest[4][4];
#pragma unroll
      for (u32 r = 0; r < 2; r++) {
        f32 query[8];
        numbers_of<8>(query, p.q, (start + w_min(first + g + 8u * r, last)) * p.heads + head, s * 32u + 8u * t);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
#if BFLOAT
          query[i] = rounded(query[i] * p.by);
#endif
          near[i / 2][i % 2 * 2 + r] = near_of(query[i]);
          rest[i / 2][i % 2 * 2 + r] = rest_of(query[i], near_of(query[i]));
        }
      }
#pragma unroll
      for (u32 pair = 0; pair < 4; pair++) {
        if (pair < pairs) {
          f32 keys[2][8], beside[2][4];
#pragma unroll
          for (u32 j = 0; j < 2; j++) {
            u32 key = w_min(block + pair * 16u + j * 8u + g, count - 1u);
            numbers_of<8>(keys[j], p.k, (start + key) * p.key_heads + key_head, s * 32u + 8u * t);
            for (u32 i = 0; i < 4; i++) beside[j][i] = 0;
          }
#pragma unroll
          for (u32 i = 0; i < 4; i++) {
#pragma unroll
            for (u32 j = 0; j < 2; j++) {
              u32 b0 = near_of(rounded(keys[j][2 * i])), b1 = near_of(rounded(keys[j][2 * i + 1]));
              mma_tf32(scores[pair * 2 + j], near[i], b0, b1);
              if (PARTS == 2u) {
                mma_tf32(beside[j], rest[i], b0, b1);
                mma_tf32(beside[j], near[i], rest_of(keys[j][2 * i], b0), rest_of(keys[j][2 * i + 1], b1));
              }
            }
          }
          if (PARTS == 2u) {
#pragma unroll
            for (u32 i = 0; i < 8; i++) scores[pair * 2 + i / 4][i % 4] += beside[i / 4][i % 4];
          }
        }
      }
    }
    f32 largest[2] = {NEVER, NEVER}, share[2] = {0, 0}, kept[2];
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
#pragma unroll
      for (u32 i = 0; i < 4; i++) {
        u32 key = block + j * 8u + 2u * t + i % 2, here = first + g + i / 2 * 8u;
        bool seen = key < end;
#if CAUSAL
        seen = seen && key <= here;
#endif
        if (p.window > 0u) seen = seen && here < key + p.window && key < here + p.window;
        f32 score = scores[j][i] * p.scale;
#if CAPPED
        score = p.cap * tanh_(score / p.cap);
#endif
#if TABLE
        i32 ahead = w_clamp(i32(key) - i32(here), -i32(p.reach), i32(p.reach)) + i32(p.reach);
        score += bias[u32(buckets[ahead]) * p.heads + head];
#endif
        scores[j][i] = seen ? score : NEVER;
        largest[i / 2] = w_max(largest[i / 2], scores[j][i]);
      }
    }
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
      f32 next = w_max(top[r], row_max(largest[r]));
      kept[r] = exp_(top[r] - next);
      top[r] = next;
    }
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      if (j < 2u * pairs) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          scores[j][i] = scores[j][i] == NEVER ? 0.0 : exp_(scores[j][i] - top[i / 2]);
          share[i / 2] = share[i / 2] + scores[j][i];
        }
      }
    }
    for (u32 r = 0; r < 2; r++) total[r] = w_fma(total[r], kept[r], row_sum(share[r]));
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
      for (u32 i = 0; i < 16; i++) sums[s][i / 4][i % 4] = sums[s][i / 4][i % 4] * kept[i % 4 / 2];
    }
#pragma unroll
    for (u32 j = 0; j < 8; j++) {
      if (j < 2u * pairs) {
        u32 near[4], rest[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {  // keys 2 t and 2 t + 1 are columns t and t + 4
          f32 value = scores[j][i % 2 * 2 + i / 2];
          near[i] = near_of(value);
          rest[i] = rest_of(value, near[i]);
        }
#pragma unroll
        for (u32 s = 0; s < STEPS; s++) {
          f32 values[2][4];
#pragma unroll
          for (u32 i = 0; i < 2; i++) {
            u32 key = block + j * 8u + 2u * t + i;
            numbers_of<4>(values[i], p.v, (start + w_min(key, count - 1u)) * p.key_heads + key_head, s * 32u + 4u * g);
            for (u32 u = 0; u < 4; u++) values[i][u] = key < end ? values[i][u] : 0.0;
          }
#pragma unroll
          for (u32 u = 0; u < 4; u++) {
            u32 b0 = near_of(rounded(values[0][u])), b1 = near_of(rounded(values[1][u]));
            mma_tf32(sums[s][u], near, b0, b1);
            if (PARTS == 2u) {
              mma_tf32(sums[s][u], rest, b0, b1);
              mma_tf32(sums[s][u], near, rest_of(values[0][u], b0), rest_of(values[1][u], b1));
            }
          }
        }
      }
    }
  }
#pragma unroll
  for (u32 r = 0; r < 2; r++) {
    u32 row = (start + first + g + 8u * r) * p.heads + head;
    if (first + g + 8u * r >= count) continue;
    f32 factor = 1.0, whole = total[r];
#if SINKS
    f32 most = w_max(top[r], sinks[head]);
    factor = exp_(top[r] - most);
    whole = w_fma(total[r], factor, exp_(sinks[head] - most));
#endif
#pragma unroll
    for (u32 s = 0; s < STEPS; s++) {
#pragma unroll
      for (u32 i = 0; i < 8; i += 2) {  // channels 8 t + i and the next of 32
        u32 c = s * 32u + 8u * t + i;
        f32 one = sums[s][i % 4][2 * r + i / 4] * factor / whole, two = sums[s][i % 4 + 1][2 * r + i / 4] * factor / whole;
#if ROUNDED
        if (c < DIM) arena[p.out + (row * DIM + c) / 2u] = bfloats(one, two);
#else
        if (c < DIM) put(p.out + row * DIM + c, one);
        if (c + 1u < DIM) put(p.out + row * DIM + c + 1u, two);
#endif
      }
    }
  }
}
