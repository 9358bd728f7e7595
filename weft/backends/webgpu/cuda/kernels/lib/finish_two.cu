// finish_two: two neighbouring columns of a product, the first one even; with ROUNDED as bfloats, in a word.
FN void finish_two(u32 row, u32 col, f32 left, f32 right) {
#if PAIRED
  if (col < p.cols) finish_pair(row, col, left, right);
#else
#if ROUNDED
  if (col >= p.cols) return;  // a bias ends there, too
  arena[place_of(row, col) / 2u] = bfloats(activated(biased(col, left)), activated(biased(col + 1u, right)));
#else
  if (col < p.cols) finish(row, col, left);
  if (col + 1u < p.cols) finish(row, col + 1u, right);
#endif
#endif
}
