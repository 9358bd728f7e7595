// attend: one query and head against keys first to end, 64 at a time, with a running softmax. The caller has score(…)
// and value_of(…), and says which keys are seen. Blocks begin at multiples of 64 of a sequence, so that the order of
// sums depends on the sequence only.
#include reduce
#include math
const NEVER = -3.0e38;
var<workgroup> query: array<f32, 512>;
var<workgroup> shares: array<f32, 64>;
