// fragments: 16 rows of x times 8 rows of a weight over 256 columns, on matrix units; what all products are made of.
//
// Meaning  weft/ops/matmul.py
// Layout   x as split_rows leaves it: of each row PARTS rows of 16-bit numbers that add up to it times a power of two;
//          weights as lib/weights has them. A lane (g = lane / 4, t = lane % 4) takes columns 8 t to 8 t + 7 of every 32
//          of rows g and g + 8 of x and of row g of the weight; of q2_k, q3_k and q6_k 4 t to 4 t + 3 of every 16
// Method   an element is a sum over 256 columns after another; within, f16 and bf16 are one chain of matrix products.
//          Blocks of integers are chains over the columns of a scale, 32 or 16, times that. f32 is two halves, the
//          second one 2^11 times. The order does not depend on rows, columns or warps
// Bound    memory where rows are few, else matrix units
#bind weight: array<u32>
#include parts
const SEGMENT = 256u;

#if DTYPE == f32
const WORDS = 8u;  // of a lane's columns of a weight
#endif
#if DTYPE == f16|bf16
const WORDS = 4u;
#endif
#if DTYPE == q8_0|q4_0|q4_1|q4_k|q2_k|iq4_nl|iq4_xs|mxfp4
const WORDS = 2u;
#endif
#if DTYPE == q5_0|q5_1
const WORDS = 3u;
#endif
#if DTYPE == q3_k|q5_k|q6_k
const WORDS = 4u;
#endif
#if DTYPE == q2_k
alias Scales = vec4<f32>;  // two, and the offsets of the same columns
#else
alias Scales = vec2<f32>;  // a scale and an offset, or the scales of the first and the second 16 columns
#endif

struct Raw { words: array<u32, WORDS> }
struct Pairs { of: array<u32, 4> }

FN Pairs no_pairs() {
  Pairs none;
  for (u32 i = 0; i < 4; i++) none.of[i] = 0;
  return none;
}

// A lane's share of 32 columns of a weight, as it is stored. `row` is the word where the row begins.
FN Raw raw_of(u32 row, u32 k0, u32 t) {
  Raw raw;
#if DTYPE == f32
  const uint4* from = (const uint4*)(weight + row + k0 + t * 8u);
  uint4 first = from[0], second = from[1];
  raw.words[0] = first.x; raw.words[1] = first.y; raw.words[2] = first.z; raw.words[3] = first.w;
  raw.words[4] = second.x; raw.words[5] = second.y; raw.words[6] = second.z; raw.words[7] = second.w;
#endif
#if DTYPE == f16|bf16
  uint4 all = *(const uint4*)(weight + row + k0 / 2u + t * 4u);
  raw.words[0] = all.x; raw.words[1] = all.y; raw.words[2] = all.z; raw.words[3] = all.w;
#endif
#if DTYPE == q8_0
  uint2 all = *(const uint2*)(weight + row + k0 / 4u + t * 2u);
  raw.words[0] = all.x; raw.words[1] = all.y;
#endif
#if DTYPE == q4_0|q4_1|iq4_nl|mxfp4
  uint2 all = *(const uint2*)(weight + row + k0 / 8u + (t & 1u) * 2u);
#endif
#if DTYPE == iq4_xs
  uint2 all = *(const uint2*)(weight + row + k0 / 256u * 34u + 2u + (k0 / 32u & 7u) * 4u + (t & 1u) * 2u);
#endif
#if DTYPE == q5_0|q5_1
  u32 block = row + k0 / 32u * 5u;
  vec2<u32> all(weight[block + 1u + (t & 1u) * 2u], weight[block + 2u + (t & 1u) * 2u]);
  raw.words[2] = weight[block] >> (t * 8u);
#endif
#if DTYPE == q4_0|q4_1|q5_0|q5_1|iq4_nl|iq4_xs|mxfp4
  raw.words[0] = (all.x >> (t / 2u * 4u)) & 0x0f0f0f0fu;
  raw.words[1] = (all.y >> (t / 2u * 4u)) & 0x0f0f0f0fu;
#endif
#if DTYPE == q4_k|q5_k
  u32 part = k0 / 32u & 7u;
#if DTYPE == q4_k
  uint2 all = *(const uint2*)(weight + row + k0 / 256u * 36u + 4u + part / 2u * 8u + t * 2u);
#else
  uint2 all = *(const uint2*)(weight + row + k0 / 256u * 44u + 12u + part / 2u * 8u + t * 2u);
  uint2 high = *(const uint2*)(weight + row + k0 / 256u * 44u + 4u + t * 2u);
  raw.words[2] = (high.x >> part) & 0x01010101u;
  raw.words[3] = (high.y >> part) & 0x01010101u;
#endif
  raw.words[0] = (all.x >> ((part & 1u) * 4u)) & 0x0f0f0f0fu;
  raw.words[1] = (all.y >> ((part & 1u) * 4u)) & 0x0f0f0f0fu;
#endif
#if DTYPE == q2_k
  for (u32 half = 0; half < 2; half++) raw.words[half] = weight[row + k0 / 256u * 21u + 4u + (k0 / 128u & 1u) * 8u + half * 4u + t];
#endif
#if DTYPE == q3_k
  u32 start = row + k0 / 256u * 27u;
  for (u32 half = 0; half < 2; half++) {
    raw.words[half] = weight[start + 8u + (k0 / 128u & 1u) * 8u + half * 4u + t];
    raw.words[2 + half] = weight[start + half * 4u + t];
  }
#endif
#if DTYPE == q6_k
  u32 start = row + k0 / 256u * 52u, side = k0 / 128u & 1u, quarter = k0 / 32u & 3u;
  for (u32 half = 0; half < 2; half++) {
    raw.words[half] = weight[start + side * 16u + (quarter & 1u) * 8u + half * 4u + t];
    raw.words[2 + half] = weight[start + 32u + side * 8u + half * 4u + t];
  }
#endif
  return raw;
}

// Bytes 0 to 255 as halves, less `less` + 1024 (exact).
FN void byte_halves(u32 word, u32 less, u32& first, u32& second) {
  first = halves_less(bytes_of(word, 0x64646464u, 0x4140u), less);
  second = halves_less(bytes_of(word, 0x64646464u, 0x4342u), less);
}

#if DTYPE == q5_0|q5_1
// The first four bits of a word as the fifth bits of four bytes.
FN u32 fifths(u32 bits) { return (((bits & 15u) * 0x00204081u) & 0x01010101u) << 4u; }
#endif
#if DTYPE == iq4_nl|iq4_xs|mxfp4
// What the four codes of a word stand for, in bytes: a code's lower three bits choose among eight bytes.
#if DTYPE == mxfp4
const TABLE = vec4<u32>(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
#else
const TABLE = vec4<u32>(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
#endif
FN u32 looked_up(u32 codes) {
  u32 lower = codes & 0x07070707u;
  u32 pairs = lower | lower >> 4u;
  u32 chosen = (pairs & 0xffu) | (pairs >> 8u & 0xff00u);
  u32 upper = (codes >> 3u & 0x01010101u) * 255u;
  return (bytes_of(TABLE.x, TABLE.y, chosen) & ~upper) | (bytes_of(TABLE.z, TABLE.w, chosen) & upper);
}
#endif

// The lane's eight numbers as halves or bfloats: pairs of columns (0, 1), (2, 3), (4, 5), (6, 7). Of blocks the codes.
FN Pairs pairs_of(const Raw& raw, u32 k0) {
  Pairs made;
#if DTYPE == f16|bf16
  for (u32 i = 0; i < 4; i++) made.of[i] = raw.words[i];
#endif
#if DTYPE == f32
  for (u32 i = 0; i < 4; i++) made.of[i] = halves(bitcast<f32>(raw.words[2 * i]), bitcast<f32>(raw.words[2 * i + 1]));
#endif
#if DTYPE == q8_0
  byte_halves(raw.words[0] ^ 0x80808080u, 0x64806480u, made.of[0], made.of[1]);
  byte_halves(raw.words[1] ^ 0x80808080u, 0x64806480u, made.of[2], made.of[3]);
#endif
#if DTYPE == q4_0
  byte_halves(raw.words[0], 0x64086408u, made.of[0], made.of[1]);
  byte_halves(raw.words[1], 0x64086408u, made.of[2], made.of[3]);
#endif
#if DTYPE == q5_0
  byte_halves(raw.words[0] | fifths(raw.words[2]), 0x64106410u, made.of[0], made.of[1]);
  byte_halves(raw.words[1] | fifths(raw.words[2] >> 4u), 0x64106410u, made.of[2], made.of[3]);
#endif
#if DTYPE == q5_1
  byte_halves(raw.words[0] | fifths(raw.words[2]), 0x64006400u, made.of[0], made.of[1]);
  byte_halves(raw.words[1] | fifths(raw.words[2] >> 4u), 0x64006400u, made.of[2], made.of[3]);
#endif
#if DTYPE == q4_1|q4_k
  byte_halves(raw.words[0], 0x64006400u, made.of[0], made.of[1]);
  byte_halves(raw.words[1], 0x64006400u, made.of[2], made.of[3]);
#endif
#if DTYPE == q5_k
  byte_halves(raw.words[0] | raw.words[2] << 4u, 0x64006400u, made.of[0], made.of[1]);
  byte_halves(raw.words[1] | raw.words[3] << 4u, 0x64006400u, made.of[2], made.of[3]);
#endif
#if DTYPE == iq4_nl|iq4_xs|mxfp4
  byte_halves(looked_up(raw.words[0]) ^ 0x80808080u, 0x64806480u, made.of[0], made.of[1]);
  byte_halves(looked_up(raw.words[1]) ^ 0x80808080u, 0x64806480u, made.of[2], made.of[3]);
#endif
#if DTYPE == q2_k|q3_k
  u32 quarter = k0 / 32u & 3u;
  for (u32 half = 0; half < 2; half++) {
    u32 codes = (raw.words[half] >> (quarter * 2u)) & 0x03030303u;
#if DTYPE == q2_k
    byte_halves(codes, 0x64006400u, made.of[2 * half], made.of[2 * half + 1]);
#else
    u32 high = ((raw.words[2 + half] >> ((k0 / 128u & 1u) * 4u + quarter)) & 0x01010101u) << 2u;
    byte_halves(codes | high, 0x64046404u, made.of[2 * half], made.of[2 * half + 1]);
#endif
  }
#endif
#if DTYPE == q6_k
  u32 quarter = k0 / 32u & 3u;
  for (u32 half = 0; half < 2; half++) {
    u32 low = (raw.words[half] >> (quarter / 2u * 4u)) & 0x0f0f0f0fu;
    u32 high = ((raw.words[2 + half] >> (quarter * 2u)) & 0x03030303u) << 4u;
    byte_halves(low | high, 0x64206420u, made.of[2 * half], made.of[2 * half + 1]);
  }
#endif
  return made;
}

#if DTYPE == f32
// What halves leave of floats, 2^11 times.
FN Pairs rests_of(const Raw& raw, const Pairs& pairs) {
  Pairs made;
  for (u32 i = 0; i < 4; i++) {
    vec2<f32> near = w_unpack2x16float(pairs.of[i]);
    made.of[i] = halves((bitcast<f32>(raw.words[2 * i]) - near.x) * 2048.0, (bitcast<f32>(raw.words[2 * i + 1]) - near.y) * 2048.0);
  }
  return made;
}
#endif

FN u32 byte_of(u32 word, u32 byte) { return weight[word + byte / 4u] >> (byte % 4u * 8u) & 255u; }

#if DTYPE == q8_0|q4_0|q5_0|iq4_nl|q3_k|q6_k
// The scale of a block, of which the row's codes are `words` before.
FN f32 end_scale(u32 row, u32 words, u32 block) {
  return widened_half(weight[row + words + block / 2u] >> (block % 2u * 16u) & 0xffffu);
}
#endif

// The scale of 32 columns of a row of the weight and what is taken off, times the sum of x; of some types of 16 columns each.
FN Scales scales_of(u32 row, u32 k0) {
#if DTYPE == q8_0
  return vec2<f32>(end_scale(row, (p.depth + 31u) / 32u * 8u, k0 / 32u), 0.0);
#endif
#if DTYPE == q4_0|iq4_nl
  return vec2<f32>(end_scale(row, (p.depth + 31u) / 32u * 4u, k0 / 32u), 0.0);
#endif
#if DTYPE == q5_0
  return vec2<f32>(end_scale(row, (p.depth + 31u) / 32u * 5u, k0 / 32u), 0.0);
#endif
#if DTYPE == q4_1
  u32 both = weight[row + (p.depth + 31u) / 32u * 4u + k0 / 32u];
  return vec2<f32>(widened_half(both & 0xffffu), -widened_half(both >> 16u));
#endif
#if DTYPE == q5_1
  u32 both = weight[row + (p.depth + 31u) / 32u * 5u + k0 / 32u];
  return vec2<f32>(widened_half(both & 0xffffu), -widened_half(both >> 16u));
#endif
#if DTYPE == mxfp4
  u32 power = byte_of(row + (p.depth + 31u) / 32u * 4u, k0 / 32u);
  return vec2<f32>(power < 2u ? 0.0 : bitcast<f32>((power - 1u) << 23u), 0.0);
#endif
#if DTYPE == iq4_xs
  u32 block = row + k0 / 256u * 34u, part = k0 / 32u & 7u;
  u32 head = weight[block], low = weight[block + 1u] >> (part * 4u) & 15u, high = head >> (16u + part * 2u) & 3u;
  return vec2<f32>(widened_half(head & 0xffffu) * (f32(low | high << 4u) - 32.0), 0.0);
#endif
#if DTYPE == q2_k
  u32 block = row + k0 / 256u * 21u, group = k0 / 16u & 15u;
  u32 both = weight[block + 20u], first = byte_of(block, group), second = byte_of(block, group + 1u);
  f32 scale = widened_half(both & 0xffffu), offset = widened_half(both >> 16u);
  return vec4<f32>(scale * f32(first & 15u), scale * f32(second & 15u), offset * f32(first >> 4u), offset * f32(second >> 4u));
#endif
#if DTYPE == q3_k
  u32 block = row + k0 / 256u * 27u, group = k0 / 16u & 15u;
  vec2<f32> found;
  for (u32 half = 0; half < 2; half++) {
    u32 low = byte_of(block + 24u, (group + half) & 7u) >> (group / 8u * 4u) & 15u;
    u32 high = byte_of(block + 26u, (group + half) & 3u) >> (group / 4u * 2u) & 3u;
    found[half] = f32(low | high << 4u) - 32.0;
  }
  return end_scale(row, p.depth / 256u * 27u, k0 / 256u) * found;
#endif
#if DTYPE == q4_k|q5_k
#if DTYPE == q4_k
  u32 block = row + k0 / 256u * 36u, part = k0 / 32u & 7u;
#else
  u32 block = row + k0 / 256u * 44u, part = k0 / 32u & 7u;
#endif
  u32 both = weight[block], a = weight[block + 1u], b = weight[block + 2u], c = weight[block + 3u];
  u32 shift = 8u * (part & 3u);
  u32 scale = (a >> shift) & 63u, offset = (b >> shift) & 63u;
  if (part >= 4u) {
    scale = ((c >> shift) & 15u) | (((a >> shift) & 0xc0u) >> 2u);
    offset = ((c >> (shift + 4u)) & 15u) | (((b >> shift) & 0xc0u) >> 2u);
  }
  return vec2<f32>(widened_half(both & 0xffffu) * f32(scale), widened_half(both >> 16u) * f32(offset));
#endif
#if DTYPE == q6_k
  u32 group = (k0 / 128u & 1u) * 8u + (k0 / 32u & 3u) * 2u;
  u32 word = weight[row + k0 / 256u * 52u + 48u + group / 4u] >> (group % 4u * 8u);
  f32 scale = end_scale(row, p.depth / 256u * 52u, k0 / 256u);
  return vec2<f32>(scale * f32(bitcast<i32>(word << 24u) >> 24), scale * f32(bitcast<i32>(word << 16u) >> 24));
#endif
#if DTYPE == f32|f16|bf16
  return vec2<f32>(1.0, 0.0);
#endif
}

// Rows g and g + 8 of a part of x: the lane's eight columns of 32, as words.
struct Halves { low: Pairs, high: Pairs }

// d += rows of x times rows of the weight, over 16 columns: the first or the second ones of a lane.
FN void product16(f32 (&d)[4], const Halves& x, u32 at, u32 b0, u32 b1) {
  u32 a[4] = {x.low.of[2 * at], x.high.of[2 * at], x.low.of[2 * at + 1], x.high.of[2 * at + 1]};
#if DTYPE == bf16
  mma_bf16(d, a, b0, b1);
#else
  mma_f16(d, a, b0, b1);
#endif
}

// One chunk of 32 columns added to the sums of a segment; rows g, g + 8 and columns 2 t, 2 t + 1 of them. `first` and
// `second` are scales of these columns, `ones` the sums of x over the chunk.
FN void add_chunk(f32 (&sum)[4], f32 (&rest)[4], const array<Halves, PARTS>& x, const Pairs& w, const Pairs& less,
                  Scales first, Scales second, const f32 (&ones)[4]) {
#if DTYPE == f16|bf16
  for (u32 part = 0; part < PARTS; part++) {
    product16(sum, x[part], 0, w.of[0], w.of[1]);
    product16(sum, x[part], 1, w.of[2], w.of[3]);
  }
#endif
#if DTYPE == f32
  for (u32 at = 0; at < 2; at++) {
    for (u32 part = 0; part < PARTS; part++) product16(sum, x[part], at, w.of[2 * at], w.of[2 * at + 1]);
    product16(rest, x[0], at, less.of[2 * at], less.of[2 * at + 1]);
  }
#endif
#if DTYPE == q8_0|q4_0|q4_1|q5_0|q5_1|q4_k|q5_k|iq4_nl|iq4_xs|mxfp4
  f32 part_sum[4] = {0, 0, 0, 0};
  for (u32 at = 0; at < 2; at++) {
    for (u32 part = 0; part < PARTS; part++) product16(part_sum, x[part], at, w.of[2 * at], w.of[2 * at + 1]);
  }
  for (u32 i = 0; i < 4; i++) {
    sum[i] = w_fma(part_sum[i], i % 2 == 0 ? first.x : second.x, sum[i]);
#if DTYPE == q4_1|q5_1|q4_k|q5_k
    sum[i] = w_fma(ones[i], i % 2 == 0 ? -first.y : -second.y, sum[i]);
#endif
  }
#endif
#if DTYPE == q2_k|q3_k|q6_k
  for (u32 at = 0; at < 2; at++) {
    f32 part_sum[4] = {0, 0, 0, 0};
    for (u32 part = 0; part < PARTS; part++) product16(part_sum, x[part], at, w.of[2 * at], w.of[2 * at + 1]);
    for (u32 i = 0; i < 4; i++) sum[i] = w_fma(part_sum[i], i % 2 == 0 ? first[at] : second[at], sum[i]);
#if DTYPE == q2_k
    f32 own_ones[4] = {0, 0, 0, 0};
    for (u32 part = 0; part < PARTS; part++) product16(own_ones, x[part], at, 0x3c003c00u, 0x3c003c00u);
    for (u32 i = 0; i < 4; i++) sum[i] = w_fma(own_ones[i], i % 2 == 0 ? -first[2 + at] : -second[2 + at], sum[i]);
#endif
  }
#endif
}

// The sums of x over a chunk, which offsets of 32 columns are multiplied by.
FN void add_ones(f32 (&ones)[4], const array<Halves, PARTS>& x) {
#if DTYPE == q4_1|q5_1|q4_k|q5_k
  for (u32 i = 0; i < 4; i++) ones[i] = 0;
  for (u32 at = 0; at < 2; at++) {
    for (u32 part = 0; part < PARTS; part++) product16(ones, x[part], at, 0x3c003c00u, 0x3c003c00u);
  }
#endif
}
