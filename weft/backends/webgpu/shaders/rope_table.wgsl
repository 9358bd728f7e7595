// rope_table: cosines and sines of positions times frequencies.
//
// Meaning  weft/ops/rope.py
// Layout   positions i32 [T]; frequencies [pairs]; out [T, 2 pairs]; with AXES positions are rows [A, T], and axes [pairs] says
//          by which row a pair is turned
// Method   one invocation an angle. Quarter turns are taken off by the product of the angle's 24 bits with 96 bits of
//          2 / pi, in integers, so that large angles keep all their digits; then polynomials
// Bound    arithmetic
#include group
#bind frequencies: array<f32>
#if AXES
#bind axes: array<f32>
#params tokens
#endif
#params positions, out, count, pairs, scale: f32

// The bits of 2 / pi after the point, with one word of zeros before it.
const TWO_OVER_PI = array<u32, 5>(0u, 0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u);

// The high and the low word of a product.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
  let low = (a & 0xffffu) * (b & 0xffffu);
  let first = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
  let second = (a & 0xffffu) * (b >> 16u) + (first & 0xffffu);
  return vec2<u32>((a >> 16u) * (b >> 16u) + (first >> 16u) + (second >> 16u), (second << 16u) | (low & 0xffffu));
}

// 32 bits of 2 / pi from this one after the point on; negative ones are before it.
fn bits_from(first: i32) -> u32 {
  let at = u32(first + 32);
  let word = at >> 5u;
  let shift = at & 31u;
  var words = TWO_OVER_PI;
  if (shift == 0u) { return words[word]; }
  return (words[word] << shift) | (words[word + 1u] >> (32u - shift));
}

struct Turn { quarter: u32, rest: f32 }

// x >= 0 as quarter turns and the rest, -pi/4 to pi/4.
fn reduced(x: f32) -> Turn {
  if (x <= 0.785398) { return Turn(0u, x); }
  let word = bitcast<u32>(x);
  let mantissa = (word & 0x7fffffu) | 0x800000u;
  let exponent = i32(word >> 23u) - 150;  // x = mantissa 2^exponent, exponent -24 to 7
  // mantissa times the fraction below is x 2 / pi modulo 4, with 62 bits after the point; bits of more than 4 are lost.
  let first = exponent - 2;
  let high = bits_from(first);
  let middle = wide_product(mantissa, bits_from(first + 32));
  let low = wide_product(mantissa, bits_from(first + 64));
  var bottom = middle.y + low.x;
  var top = mantissa * high + middle.x + select(0u, 1u, bottom < low.x);
  let quarter = (top + 0x20000000u) >> 30u;  // the nearest
  top = top - (quarter << 30u);  // -2^29 to 2^29
  let negative = (top & 0x80000000u) != 0u;
  if (negative) {
    bottom = ~bottom + 1u;
    top = ~top + select(0u, 1u, bottom == 0u);
  }
  // 64 bits with 62 after the point, as two floats.
  var shift = countLeadingZeros(top);
  if (top == 0u) { shift = 32u + countLeadingZeros(bottom); }
  var joined = top;
  var below = bottom;
  if (shift >= 32u) {
    joined = bottom << (shift & 31u);
    below = 0u;
  } else if (shift > 0u) {
    joined = (top << shift) | (bottom >> (32u - shift));
    below = bottom << shift;
  }
  let power = bitcast<f32>((127u + 1u - shift) << 23u);  // of joined as 1.31 bits: 2^(31 - shift - 30)
  let head = f32(joined >> 8u) * 1.1920928955078125e-7;  // 24 bits, exact
  let tail = (f32(joined & 0xffu) + f32(below >> 8u) * 5.9604644775390625e-8) * 4.6566128730773926e-10;
  var rest = fma(head, 1.57079637, fma(head, -4.37113883e-8, tail * 1.57079637)) * power;
  if (negative) { rest = -rest; }
  return Turn(quarter & 3u, rest);
}

fn sine(r: f32) -> f32 {
  let s = r * r;
  var q = 2.71811842e-6;
  q = fma(q, s, -1.98393348e-4);
  q = fma(q, s, 8.33329331e-3);
  q = fma(q, s, -1.66666666e-1);
  return fma(r * s, q, r);
}

fn cosine(r: f32) -> f32 {
  let s = r * r;
  var q = 2.44331571e-5;
  q = fma(q, s, -1.38873162e-3);
  q = fma(q, s, 4.16666456e-2);
  q = fma(q, s, -0.5);
  return fma(q, s, 1.0);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) lane: u32) {
  let i = group_of(at, groups) * 64u + lane;
  if (i >= p.count) { return; }
  let token = i / p.pairs;
  let pair = i % p.pairs;
#if AXES
  let position = n(p.positions + u32(axes[pair]) * p.tokens + token);
#else
  let position = n(p.positions + token);
#endif
  let turn = reduced(f32(position) * frequencies[pair]);
  let c = cosine(turn.rest);
  let s = sine(turn.rest);
  let odd = (turn.quarter & 1u) == 1u;
  let cos_sign = select(1.0, -1.0, turn.quarter == 1u || turn.quarter == 2u);
  let sin_sign = select(1.0, -1.0, turn.quarter >= 2u);
  put(p.out + token * 2u * p.pairs + pair, select(c, s, odd) * cos_sign * p.scale);
  put(p.out + token * 2u * p.pairs + p.pairs + pair, select(s, c, odd) * sin_sign * p.scale);
}
