// join: parts of a softmax over keys, in order: the largest score, the sum of shares, and the sums of two channels.
const NEVER = -3.0e38;

struct Joint {
  largest: f32,
  total: f32,
  sums: vec2<f32>,
}

fn join(before: Joint, largest: f32, total: f32, sums: vec2<f32>) -> Joint {
  let top = max(before.largest, largest);
  let kept = exp_(before.largest - top);
  let added = exp_(largest - top);
  return Joint(top, fma(before.total, kept, total * added), fma(before.sums, vec2<f32>(kept), sums * added));
}

#if SINKS
// The result where a sink takes a share and gives nothing.
fn shared_with(joint: Joint, sink: f32) -> vec2<f32> {
  let top = max(joint.largest, sink);
  let kept = exp_(joint.largest - top);
  return joint.sums * kept / fma(joint.total, kept, exp_(sink - top));
}
#endif
