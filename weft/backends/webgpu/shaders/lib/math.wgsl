// math: exp, erf, tanh and the activations as csrc/simd/math.h has them. WGSL's own are as exact as a driver likes.

// e^x - 1 = 2^k (1 + m) - 1 with x = k ln2 + r; m = e^r - 1 by a polynomial.
fn exp_rest(x: f32, k: f32) -> f32 {
  var r = fma(k, -0.693359375, x);
  r = fma(k, 2.12194440e-4, r);
  var q = 1.38146128e-3;
  q = fma(q, r, 8.36871006e-3);
  q = fma(q, r, 4.16683890e-2);
  q = fma(q, r, 1.66665211e-1);
  q = fma(q, r, 4.99999940e-1);
  return fma(r * r, q, r);
}

fn power_of_two(k: f32) -> f32 { return bitcast<f32>(u32(i32(k) + 127) << 23u); }

// Within 2 units in the last place; 0 below -87.33, and 2^127 times 2 at most.
fn exp_(x: f32) -> f32 {
  let bounded = clamp(x, -87.33, 88.7);
  let k = round(bounded * 1.44269504088896341);
  let half = round(k * 0.5);
  let result = (exp_rest(bounded, k) + 1.0) * power_of_two(half) * power_of_two(k - half);
  return select(result, 0.0, x < -87.33);
}

// e^x - 1 for x <= 0, without cancellation near 0.
fn expm1_negative(x: f32) -> f32 {
  let bounded = max(x, -80.0);
  let k = round(bounded * 1.44269504088896341);
  let power = power_of_two(k);
  return fma(power, exp_rest(bounded, k), power - 1.0);
}

fn tanh_(x: f32) -> f32 {
  let t = expm1_negative(abs(x) * -2.0);
  let size = -t / (t + 2.0);
  return select(size, -size, x < 0.0);
}

// -log(erfc(z)) for z >= 0
fn minus_log_erfc(z: f32) -> f32 {
  var q = 7.5163797e-07;
  q = fma(q, z, -1.52289203e-05);
  q = fma(q, z, 1.32821311e-04);
  q = fma(q, z, -6.36580575e-04);
  q = fma(q, z, 1.61850755e-03);
  q = fma(q, z, -6.74457406e-05);
  q = fma(q, z, -1.92279872e-02);
  q = fma(q, z, 1.02806807e-01);
  q = fma(q, z, 6.36614442e-01);
  q = fma(q, z, 1.12837946);
  return q * z;
}

fn sigmoid(x: f32) -> f32 {
  let small = exp_(-abs(x));
  return select(small, 1.0, x >= 0.0) / (1.0 + small);
}

#if ACTIVATION == gelu
fn activated(x: f32) -> f32 {
  let c = exp_(-minus_log_erfc(min(abs(x), 20.0) * 0.70710678));
  return 0.5 * x * select(2.0 - c, c, x < 0.0);
}
#endif
#if ACTIVATION == gelu_tanh
fn activated(x: f32) -> f32 {
  let bounded = clamp(x, -20.0, 20.0);
  return x * sigmoid(bounded * fma(bounded * bounded, 0.0713548162726, 1.5957691216));
}
#endif
#if ACTIVATION == silu
fn activated(x: f32) -> f32 { return x * sigmoid(x); }
#endif
#if ACTIVATION == quick_gelu
fn activated(x: f32) -> f32 { return x * sigmoid(1.702 * x); }
#endif
#if ACTIVATION == relu
fn activated(x: f32) -> f32 { return max(x, 0.0); }
#endif
#if ACTIVATION == relu2
fn activated(x: f32) -> f32 { return max(x, 0.0) * max(x, 0.0); }
#endif
#if ACTIVATION == tanh
fn activated(x: f32) -> f32 { return tanh_(x); }
#endif
#if ACTIVATION == sigmoid
fn activated(x: f32) -> f32 { return sigmoid(x); }
#endif
#if ACTIVATION == softplus
fn activated(x: f32) -> f32 {
  let u = exp_(-abs(x));
  let z = u / (u + 2.0);
  let square = z * z;
  var q = 0.15384615;
  q = fma(q, square, 0.18181818);
  q = fma(q, square, 0.22222222);
  q = fma(q, square, 0.28571429);
  q = fma(q, square, 0.4);
  q = fma(q, square, 0.66666667);
  q = fma(q, square, 2.0);
  return fma(q, z, max(x, 0.0));
}
#endif
#if ACTIVATION == none
fn activated(x: f32) -> f32 { return x; }
#endif
