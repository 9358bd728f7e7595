// put_row: the key or value of one token and head, which `row` has, into its page.
#include reduce
#include pages
#include narrow
#include sequence
#bind rw state: array<u32>
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

// All of `row` is there before this is called, with a barrier between.
fn put_row(lane: u32, token: u32, head: u32, is_value: bool) {
  let to = head_of_page(lane, token, head);
  let words = words_of(p.dim);
#if KV == i8
  var part = 0.0;
  var odd = 0.0;
  for (var c = lane; c < p.dim; c += LANES) {
    part = max(part, abs(row[c]));
    if ((bitcast<u32>(row[c]) & 0x7f800000u) == 0x7f800000u) { odd = 1.0; }
  }
  let top = max_lanes(lane, part);
  let finite = max_lanes(lane, odd) == 0.0;
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
#if KV == i8
        let code = i32(clamp(round(select(0.0, row[c], finite) * step), -127.0, 127.0));
        word |= (bitcast<u32>(code) & 0xffu) << (8u * j);
#endif
      }
    }
    if (is_value) { state[to.x + PAGE * words + to.y * words + w] = word; }
    else { state[to.x + w * PAGE + to.y] = word; }
  }
}
