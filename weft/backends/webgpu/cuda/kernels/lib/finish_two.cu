// finish_two: two neighbouring columns of a product, the first one even.
FN void finish_two(u32 row, u32 col, f32 left, f32 right) {
#if PAIRED
  if (col < p.cols) finish_pair(row, col, left, right);
#else
  if (col < p.cols) finish(row, col, left);
  if (col + 1u < p.cols) finish(row, col + 1u, right);
#endif
}
