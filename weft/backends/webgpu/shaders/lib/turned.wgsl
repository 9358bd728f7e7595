// turned: a channel after its pair is turned by a row of a table, cosines [pairs] and then sines.
// With NORMED the channels are those of `plain`.
#if NORMED
fn channel(source: u32, c: u32) -> f32 { return plain[c]; }
#else
fn channel(source: u32, c: u32) -> f32 { return f(source + c); }
#endif

fn turned(source: u32, table: u32, pairs: u32, c: u32) -> f32 {
  if (c >= 2u * pairs) { return channel(source, c); }
#if INTERLEAVED
  let pair = c / 2u;
  let second = c % 2u == 1u;
  let other = c ^ 1u;
#else
  let pair = c % pairs;
  let second = c >= pairs;
  let other = select(c + pairs, c - pairs, second);
#endif
  let turn = channel(source, other) * f(table + pairs + pair);
  return fma(channel(source, c), f(table + pair), select(-turn, turn, second));
}
