// Compiled to rowstats.ptx by NVRTC 12.9.86 with
// --gpu-architecture=compute_80 --std=c++17 -default-device
//
// Per row of X[N, V]: the largest value, and the sum of 2^(x - largest).
//
// One block per row, reduced by shuffles in a warp and through static shared
// memory between warps. The number of rows that hold no finite value is counted
// by an atomic.

static __device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

struct Online {
  float largest, sum;
};

static __device__ __forceinline__ Online merge(Online a, Online b) {
  float largest = fmaxf(a.largest, b.largest);
  if (largest == -__int_as_float(0x7f800000)) return {largest, 0.f};
  return {largest, a.sum * exp2_approx(a.largest - largest) + b.sum * exp2_approx(b.largest - largest)};
}

static __device__ __forceinline__ Online reduce_warp(Online x) {
#pragma unroll
  for (int d = 16; d > 0; d >>= 1) {
    Online other = {__shfl_xor_sync(0xffffffffu, x.largest, d), __shfl_xor_sync(0xffffffffu, x.sum, d)};
    x = merge(x, other);
  }
  return x;
}

extern "C" __global__ void rowstats(const float* X, float* largest, float* sum, unsigned* empty,
                                    int V) {
  __shared__ Online parts[32];
  const float infinity = __int_as_float(0x7f800000);
  const float* row = X + (size_t)blockIdx.x * V;
  Online x = {-infinity, 0.f};
  for (int v = threadIdx.x; v < V; v += blockDim.x) x = merge(x, {row[v], 1.f});
  x = reduce_warp(x);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  if (warp != 0) return;
  x = reduce_warp(lane < warps ? parts[lane] : Online{-infinity, 0.f});
  if (lane == 0) {
    largest[blockIdx.x] = x.largest;
    sum[blockIdx.x] = x.sum;
    if (x.largest == -infinity) atomicAdd(empty, 1u);
  }
}
