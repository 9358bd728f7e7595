// prelude: what WGSL has and CUDA's C++ has not: vectors, arrays, its functions and names of types.
//
// Meaning  the WGSL specification's; sums, products, divisions and roots are rounded once, to nearest
// Layout   a vector's elements follow each other, as in WGSL's buffers, where vec4 is aligned to 16 bytes
// Method   operators by macros for 2 to 4 elements; WEFT_EMULATED is defined where a processor runs the kernels (tests)
// Bound    nothing here moves memory
#ifndef WEFT_EMULATED
#define FN __device__ __forceinline__
#define CONST __device__ constexpr
#endif
typedef unsigned int u32;
typedef int i32;
typedef float f32;

template <class T>
struct vec2 {
  T x, y;
  vec2() = default;
  FN constexpr vec2(T a, T b) : x(a), y(b) {}
  FN constexpr explicit vec2(T a) : x(a), y(a) {}
  template <class U>
  FN constexpr explicit vec2(const vec2<U>& o) : x(T(o.x)), y(T(o.y)) {}
  FN T& operator[](u32 i) { return (&x)[i]; }
  FN const T& operator[](u32 i) const { return (&x)[i]; }
};

template <class T>
struct vec3 {
  T x, y, z;
  vec3() = default;
  FN constexpr vec3(T a, T b, T c) : x(a), y(b), z(c) {}
  FN constexpr explicit vec3(T a) : x(a), y(a), z(a) {}
  template <class U>
  FN constexpr explicit vec3(const vec3<U>& o) : x(T(o.x)), y(T(o.y)), z(T(o.z)) {}
  FN T& operator[](u32 i) { return (&x)[i]; }
  FN const T& operator[](u32 i) const { return (&x)[i]; }
  FN vec2<T> xy() const { return vec2<T>(x, y); }
};

template <class T>
struct alignas(16) vec4 {
  T x, y, z, w;
  vec4() = default;
  FN constexpr vec4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  FN constexpr explicit vec4(T a) : x(a), y(a), z(a), w(a) {}
  FN constexpr vec4(const vec2<T>& a, const vec2<T>& b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  template <class U>
  FN constexpr explicit vec4(const vec4<U>& o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
  FN T& operator[](u32 i) { return (&x)[i]; }
  FN const T& operator[](u32 i) const { return (&x)[i]; }
  FN vec2<T> xy() const { return vec2<T>(x, y); }
  FN vec2<T> zw() const { return vec2<T>(z, w); }
  FN vec3<T> xyz() const { return vec3<T>(x, y, z); }
};

template <class T, u32 N>
struct array {
  T v[N];
  array() = default;
  template <class... A>
  FN constexpr explicit array(T first, A... more) : v{first, T(more)...} {}
  FN constexpr T& operator[](u32 i) { return v[i]; }
  FN constexpr const T& operator[](u32 i) const { return v[i]; }
};

#define WEFT_OPERATOR(OP)                                                                                              \
  template <class T, class U>                                                                                          \
  FN vec2<T> operator OP(const vec2<T>& a, const vec2<U>& b) {                                                         \
    return vec2<T>(a.x OP b.x, a.y OP b.y);                                                                            \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  FN vec2<T> operator OP(const vec2<T>& a, T b) {                                                                      \
    return vec2<T>(a.x OP b, a.y OP b);                                                                                \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  FN vec2<T> operator OP(T a, const vec2<T>& b) {                                                                      \
    return vec2<T>(a OP b.x, a OP b.y);                                                                                \
  }                                                                                                                    \
  template <class T, class U>                                                                                          \
  FN vec4<T> operator OP(const vec4<T>& a, const vec4<U>& b) {                                                         \
    return vec4<T>(a.x OP b.x, a.y OP b.y, a.z OP b.z, a.w OP b.w);                                                    \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  FN vec4<T> operator OP(const vec4<T>& a, T b) {                                                                      \
    return vec4<T>(a.x OP b, a.y OP b, a.z OP b, a.w OP b);                                                            \
  }                                                                                                                    \
  template <class T>                                                                                                   \
  FN vec4<T> operator OP(T a, const vec4<T>& b) {                                                                      \
    return vec4<T>(a OP b.x, a OP b.y, a OP b.z, a OP b.w);                                                            \
  }
WEFT_OPERATOR(+)
WEFT_OPERATOR(-)
WEFT_OPERATOR(*)
WEFT_OPERATOR(/)
WEFT_OPERATOR(&)
WEFT_OPERATOR(|)
WEFT_OPERATOR(^)
WEFT_OPERATOR(<<)
WEFT_OPERATOR(>>)
template <class V, class U>
FN V& operator+=(V& a, const U& b) {
  return a = a + b;
}

template <class To>
struct Bits;
template <>
struct Bits<f32> {
  FN static f32 of(u32 word) { return __uint_as_float(word); }
  FN static f32 of(i32 word) { return __uint_as_float(u32(word)); }
};
template <>
struct Bits<u32> {
  FN static u32 of(f32 value) { return __float_as_uint(value); }
  FN static u32 of(i32 value) { return u32(value); }
  FN static u32 of(u32 value) { return value; }
};
template <>
struct Bits<i32> {
  FN static i32 of(f32 value) { return i32(__float_as_uint(value)); }
  FN static i32 of(u32 value) { return i32(value); }
};
template <class T>
struct Bits<vec2<T>> {
  template <class U>
  FN static vec2<T> of(const vec2<U>& v) {
    return vec2<T>(Bits<T>::of(v.x), Bits<T>::of(v.y));
  }
};
template <class T>
struct Bits<vec4<T>> {
  template <class U>
  FN static vec4<T> of(const vec4<U>& v) {
    return vec4<T>(Bits<T>::of(v.x), Bits<T>::of(v.y), Bits<T>::of(v.z), Bits<T>::of(v.w));
  }
};
template <class To, class From>
FN To bitcast(const From& value) {
  return Bits<To>::of(value);
}

FN f32 w_fma(f32 a, f32 b, f32 c) { return __fmaf_rn(a, b, c); }
FN vec2<f32> w_fma(const vec2<f32>& a, const vec2<f32>& b, const vec2<f32>& c) {
  return vec2<f32>(w_fma(a.x, b.x, c.x), w_fma(a.y, b.y, c.y));
}
FN vec4<f32> w_fma(const vec4<f32>& a, const vec4<f32>& b, const vec4<f32>& c) {
  return vec4<f32>(w_fma(a.x, b.x, c.x), w_fma(a.y, b.y, c.y), w_fma(a.z, b.z, c.z), w_fma(a.w, b.w, c.w));
}
template <class T>
FN T w_min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
FN T w_max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
FN T w_clamp(T x, T low, T high) {
  return w_min(w_max(x, low), high);
}
template <class T>
FN T w_select(T no, T yes, bool condition) {
  return condition ? yes : no;
}
template <class T>
FN T w_abs(T x) {
  return x < T(0) ? -x : x;
}
FN f32 w_abs(f32 x) { return fabsf(x); }
FN f32 w_round(f32 x) { return rintf(x); }
FN f32 w_floor(f32 x) { return floorf(x); }
FN f32 w_sqrt(f32 x) { return __fsqrt_rn(x); }
FN f32 w_dot(const vec4<f32>& a, const vec4<f32>& b) {
  return w_fma(a.w, b.w, w_fma(a.z, b.z, w_fma(a.y, b.y, a.x * b.x)));
}
FN u32 w_countLeadingZeros(u32 x) { return u32(__clz(i32(x))); }
FN u32 w_countOneBits(u32 x) { return u32(__popc(x)); }

// A half widened, exactly, by integers: half.wgsl says how.
FN f32 widened_half(u32 word) {
  u32 size = word & 0x7fffu;
  f32 wide = size < 0x400u ? f32(size) * 5.9604644775390625e-8f : __uint_as_float((size << 13) + 0x38000000u);
  if (size >= 0x7c00u) wide = __uint_as_float((size << 13) + 0x70000000u);
  return __uint_as_float(__float_as_uint(wide) | ((word & 0x8000u) << 16));
}
#ifdef WEFT_EMULATED
FN vec2<f32> w_unpack2x16float(u32 word) { return vec2<f32>(widened_half(word & 0xffffu), widened_half(word >> 16)); }
#else
FN vec2<f32> w_unpack2x16float(u32 word) {
  vec2<f32> both;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(both.x), "=f"(both.y)
      : "r"(word));
  return both;
}
FN void w_workgroupBarrier() { __syncthreads(); }
#endif
template <class T>
FN T w_workgroupUniformLoad(const T* from) {
  w_workgroupBarrier();
  T value = *from;
  w_workgroupBarrier();
  return value;
}

// Sixteen rows times eight columns over sixteen elements: d += a b, lanes holding parts as PTX's mma.m16n8k16 has them.
#ifndef WEFT_EMULATED
// Writes before this are seen by whoever sees a later one.
FN void everybody_sees() { __threadfence(); }
// Counts to `limit` - 1 and begins again; the number before.
FN u32 add_one(u32* counter, u32 limit) { return atomicInc(counter, limit - 1u); }
FN f32 fresh(const u32* from) { return __uint_as_float(__ldcg(from)); }
FN void mma_f16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void mma_bf16(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same over eight elements, floats of which the lower 13 bits do not count.
FN void mma_tf32(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two floats rounded to halves, the first one in the low bits; and the float of a half or bfloat16.
FN u32 halves(f32 low, f32 high) {
  u32 both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
FN u32 bfloats(f32 low, f32 high) {
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
FN u32 halves_less(u32 a, u32 b) {  // exact for what is asked here
  u32 both;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(both) : "r"(a), "r"(b));
  return both;
}
FN u32 bytes_of(u32 a, u32 b, u32 chosen) { return __byte_perm(a, b, chosen); }
// Sixteen bytes to a group's memory while its threads compute. Those that a thread asks for before `end_lot` are a lot,
// and `wait_but<N>` waits for all of its lots but the last N.
FN void copy16(uint4* to, const u32* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
// Workgroups of a cluster run at once and send numbers into each other's memory. A gate opens once as many bytes have come
// as it expects; a workgroup's gates and memory may be used once all of its cluster have begun.
typedef unsigned long long u64;
FN u32 shared_place(const void* at) { return u32(__cvta_generic_to_shared(at)); }
FN void expect(u64* gate, u32 bytes) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1; mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_place(gate)),
               "r"(bytes)
               : "memory");
}
// A multiple of 16 bytes of the device's memory to a group's, by a machine of its own.
FN void fetch(void* to, const u32* from, u32 bytes, u64* gate) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_place(to)),
               "l"(from), "r"(bytes), "r"(shared_place(gate))
               : "memory");
}
FN void arrive() {
  asm volatile("fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
FN void all_arrived() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
FN void send(f32* to, u32 rank, f32 value, u64* gate) {
  asm volatile(
      "{.reg .b32 there, gate; mapa.shared::cluster.u32 there, %0, %1; mapa.shared::cluster.u32 gate, %2, %1;"
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [there], %3, [gate];}" ::"r"(shared_place(to)),
      "r"(rank), "r"(shared_place(gate)), "r"(__float_as_uint(value))
      : "memory");
}
// A multiple of 16 bytes of a workgroup's memory; what its threads wrote before `sendable` and a barrier.
FN void sendable() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
FN void send_all(void* to, u32 rank, const void* from, u32 bytes, u64* gate) {
  asm volatile(
      "{.reg .b32 there, gate; mapa.shared::cluster.u32 there, %0, %1; mapa.shared::cluster.u32 gate, %2, %1;"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [there], [%3], %4, [gate];}" ::"r"(shared_place(to)),
      "r"(rank), "r"(shared_place(gate)), "r"(shared_place(from)), "r"(bytes)
      : "memory");
}
FN void wait_for(u64* gate) {
  asm volatile(
      "{.reg .pred open; again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], 0; @open bra done; bra again; done:}" ::"r"(
          shared_place(gate))
      : "memory");
}
FN void team_wait(u32 team, u32 size) { asm volatile("bar.sync %0, %1;" ::"r"(team), "r"(size) : "memory"); }
FN void warp_wait() { __syncwarp(); }
// A kernel that waits for those before may be started earlier than they end: from when all their groups have said so.
FN void those_before_end() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
FN void those_after_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
FN void end_lot() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <u32 N>
FN void wait_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#define LAUNCHED(name, quads) extern __shared__ uint4 name[]  // as much as the launch says
FN f32 from_lane(f32 value, u32 mask) { return __shfl_xor_sync(0xffffffffu, value, mask); }
FN f32 from_lower(f32 value, u32 apart) { return __shfl_up_sync(0xffffffffu, value, apart); }
FN f32 from_last(f32 value) { return __shfl_sync(0xffffffffu, value, 31); }
#endif
