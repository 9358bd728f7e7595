// pages: where a state keeps keys and values of PAGE tokens, in words of {{PER}} channels.
//
// A page has for each head its keys [words][PAGE], its values [PAGE][words] and, of codes, the scales of both [PAGE]:
// lanes that take neighbouring tokens read neighbouring keys, those that take neighbouring channels values.
const PAGE = 32u;
const PER = {{PER}}u;

fn words_of(dim: u32) -> u32 { return (dim + PER - 1u) / PER; }

// Words of one head in a page.
fn head_words(dim: u32) -> u32 {
#if KV == i8|i8r|i4r
  return 2u * PAGE * words_of(dim) + 2u * PAGE;
#else
  return 2u * PAGE * words_of(dim);
#endif
}
