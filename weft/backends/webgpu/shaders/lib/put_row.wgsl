// put_row: the key or value of one token and head, which `row` has, into its page. Of i8r and i4r rows are turned first,
// and with CENTRED keys are less a constant: decision 0052.
#include reduce
#include pages
#include narrow
#include sequence
#if TURNED
#include walsh
#endif
#bind rw state: array<u32>
#if CENTRED
#bind centre: array<f32>
#bind steady: array<f32>
#endif
var<workgroup> row: array<f32, 512>;
var<workgroup> place: u32;

// Where the page of a token begins for a head, for all lanes; and its column.
fn head_of_page(lane: u32, token: u32, head: u32) -> vec2<u32> {
  let position = u32(n(p.positions + token));
  if (lane == 0u) {
    let sequence = sequence_of(token, p.segments, p.sequences);
    let page = u32(n(p.pages + sequence * p.max_pages + position / PAGE));
    place = (page * p.key_heads + head) * head_words(p.dim);
  }
  return vec2<u32>(workgroupUniformLoad(&place), position % PAGE);
}

#if KV == i4r
var<workgroup> errors: array<u32, 384>;  // [scale][lane]

// The level of n / 8 units that is nearest to `size` of them: 0 to 7, those above 0 of i4r.
fn level_of(size: u32, n: u32) -> u32 {
  // Twice the middles between levels are 24, 49, 75, 102, 133, 171 and 223.
  let at = size * 16u;
  return u32(24u * n < at) + u32(49u * n < at) + u32(75u * n < at) + u32(102u * n < at) + u32(133u * n < at) +
         u32(171u * n < at) + u32(223u * n < at);
}

// What it stands for: 6, 18, 31, 44, 58, 75, 96 or 127.
fn level(index: u32) -> u32 {
  return (select(0x2c1f1206u, 0x7f604b3au, index >= 4u) >> (8u * (index & 3u))) & 255u;
}
#endif

// All of `row` is there before this is called, with a barrier between.
fn put_row(lane: u32, token: u32, head: u32, is_value: bool) {
  let to = head_of_page(lane, token, head);
  let words = words_of(p.dim);
#if CENTRED
  if (!is_value) {
    for (var c = lane; c < p.dim; c += LANES) { row[c] = row[c] - centre[head * p.dim + c] * steady[c]; }
  }
#endif
#if KV == i8|i8r|i4r
  var part = 0.0;
  var odd = 0.0;
#if TURNED
  for (var c = lane; c < p.dim; c += LANES) {
    if ((bitcast<u32>(row[c]) & 0x7f800000u) == 0x7f800000u) { odd = 1.0; }
    turning[c] = row[c];
  }
  turn(lane, LANES, p.dim);
  for (var c = lane; c < p.dim; c += LANES) { row[c] = turning[c]; }
#endif
  for (var c = lane; c < p.dim; c += LANES) {
    part = max(part, abs(row[c]));
    if ((bitcast<u32>(row[c]) & 0x7f800000u) == 0x7f800000u) { odd = 1.0; }
  }
  let top = max_lanes(lane, part);
  let finite = max_lanes(lane, odd) == 0.0;
#endif
#if KV == i4r
  // Rounded to 254 steps a side first: errors of six scales, 17 / 8 to 12 / 8 of a step a unit, are then compared exactly.
  let least = select(0.0, top, finite) * 0.003937007874015748;
  let usable = least >= 1.17549435e-38;
  let divisor = select(1.0, top, usable);
  let near = 254.0 / divisor;
  let step = select(0.0, fma(fma(-divisor, near, 254.0), 1.0 / divisor, near), usable);
  for (var s = 0u; s < 6u; s++) {
    var sum = 0u;
    for (var c = lane; c < p.dim; c += LANES) {
      let size = u32(abs(round(select(0.0, row[c], finite) * step)));
      let off = i32(8u * size) - i32(level(level_of(size, 17u - s)) * (17u - s));
      sum += u32(off * off);
    }
    errors[s * LANES + lane] = sum;
  }
  workgroupBarrier();
  for (var half = LANES / 2u; half > 0u; half = half >> 1u) {
    if (lane < half) {
      for (var s = 0u; s < 6u; s++) { errors[s * LANES + lane] = errors[s * LANES + lane] + errors[s * LANES + lane + half]; }
    }
    workgroupBarrier();
  }
  var best = 0u;
  for (var s = 1u; s < 6u; s++) {
    if (errors[s * LANES] < errors[best * LANES]) { best = s; }
  }
  let units = 17u - best;
  workgroupBarrier();
  if (lane == 0u) {
    var kept = select(0u, bfloat_bits(least * f32(units) * 0.125) << 16u, usable);
    if (!finite) { kept = 0x7fc00000u; }
    state[to.x + 2u * PAGE * words + select(0u, PAGE, is_value) + to.y] = kept;
  }
#endif
#if KV == i8|i8r
  // The scale is rounded up to bfloat16. A driver's divisions may be off by a unit, so both are corrected once.
  let near = select(0.0, top, finite) * 0.00787401575;
  let size = fma(fma(-near, 127.0, select(0.0, top, finite)), 0.00787401575, near);
  let scale_bits = (bitcast<u32>(size) + 0xffffu) & 0xffff0000u;
  let usable = finite && scale_bits >= 0x00800000u && scale_bits < 0x7f800000u;
  let scale = select(1.0, bitcast<f32>(scale_bits), usable);
  let close = 1.0 / scale;
  let step = select(0.0, fma(fma(-scale, close, 1.0), close, close), usable);
  if (lane == 0u) {
    var kept = select(0u, scale_bits, usable);
    if (!finite) { kept = 0x7fc00000u; }
    state[to.x + 2u * PAGE * words + select(0u, PAGE, is_value) + to.y] = kept;
  }
#endif
  for (var w = lane; w < words; w += LANES) {
    var word = 0u;
    for (var j = 0u; j < PER; j++) {
      let c = w * PER + j;
      if (c < p.dim) {
#if KV == f32
        word = bitcast<u32>(row[c]);
#endif
#if KV == f16
        word |= half_bits(row[c]) << (16u * j);
#endif
#if KV == bf16
        word |= bfloat_bits(row[c]) << (16u * j);
#endif
#if KV == i4r
        let stepped = round(select(0.0, row[c], finite) * step);
        let index = level_of(u32(abs(stepped)), units);
        word |= select(8u + index, 7u - index, stepped < 0.0) << (4u * j);
#endif
#if KV == i8|i8r
        let code = i32(clamp(round(select(0.0, row[c], finite) * step), -127.0, 127.0));
        word |= (bitcast<u32>(code) & 0xffu) << (8u * j);
#endif
      }
    }
    if (is_value) { state[to.x + PAGE * words + to.y * words + w] = word; }
    else { state[to.x + w * PAGE + to.y] = word; }
  }
}
