// Compiled to matmul.ptx by NVRTC 12.9.86 with
// --gpu-architecture=compute_80 --std=c++17 -default-device
//
// C[M, N] = A[M, K] * B[N, K]^T, bf16 inputs, f32 result.
//
// One block of four warps computes a tile of 64 x 64, each warp a quarter of
// 32 x 32, with inner steps of 32. Two shared memory stages are filled by
// cp.async while the other is multiplied. Rows in shared memory are 40 elements
// apart so that ldmatrix has no bank conflicts. K is a multiple of 8; M, N and K
// may be ragged against the tile, the missing parts being filled with zeros.

typedef unsigned short u16;
typedef unsigned int u32;

#define TILE 64
#define STEP 32
#define PITCH 40

struct Stage {
  u16 a[TILE * PITCH];
  u16 b[TILE * PITCH];
};

static __device__ __forceinline__ u32 shared_address(const void* p) {
  return (u32)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void copy16(u32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

static __device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

static __device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies rows [row0, row0 + 64) and columns [k0, k0 + 32) of a matrix with K
// columns; what lies beyond `rows` or K becomes zero.
static __device__ __forceinline__ void copy_tile(u16* to, const u16* from, int row0, int rows,
                                                 int k0, int K) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    int chunk = threadIdx.x + i * 128;
    int row = chunk >> 2, column = (chunk & 3) * 8;
    bool inside = row0 + row < rows && k0 + column < K;
    const u16* source = inside ? from + (size_t)(row0 + row) * K + k0 + column : from;
    copy16(shared_address(to + row * PITCH + column), source, inside ? 16 : 0);
  }
}

extern "C" __global__ void __launch_bounds__(128)
    matmul(const u16* A, const u16* B, float* C, int M, int N, int K) {
  extern __shared__ __align__(128) unsigned char memory[];
  Stage* stages = (Stage*)memory;
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int warp_m = (warp >> 1) * 32, warp_n = (warp & 1) * 32;
  int m0 = blockIdx.y * TILE, n0 = blockIdx.x * TILE;
  float sum[2][4][4] = {};

  int steps = (K + STEP - 1) / STEP;
  copy_tile(stages[0].a, A, m0, M, 0, K);
  copy_tile(stages[0].b, B, n0, N, 0, K);
  asm volatile("cp.async.commit_group;" ::: "memory");
  for (int step = 0; step < steps; step++) {
    if (step + 1 < steps) {
      Stage& next = stages[(step + 1) & 1];
      copy_tile(next.a, A, m0, M, (step + 1) * STEP, K);
      copy_tile(next.b, B, n0, N, (step + 1) * STEP, K);
      asm volatile("cp.async.commit_group;" ::: "memory");
      asm volatile("cp.async.wait_group 1;" ::: "memory");
    } else {
      asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    const Stage& stage = stages[step & 1];
#pragma unroll
    for (int k = 0; k < STEP; k += 16) {
      u32 a[2][4], b[2][4];
#pragma unroll
      for (int i = 0; i < 2; i++)
        load_matrices(a[i], shared_address(stage.a + (warp_m + i * 16 + (lane & 15)) * PITCH + k +
                                           (lane >> 4) * 8));
#pragma unroll
      for (int j = 0; j < 2; j++)
        load_matrices(b[j], shared_address(stage.b +
                                           (warp_n + j * 16 + (lane & 7) + (lane >> 4) * 8) * PITCH +
                                           k + ((lane >> 3) & 1) * 8));
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          multiply(sum[i][j], a[i], b[j >> 1][(j & 1) * 2], b[j >> 1][(j & 1) * 2 + 1]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int q = 0; q < 4; q++) {
        int row = m0 + warp_m + i * 16 + (lane >> 2) + (q >> 1) * 8;
        int column = n0 + warp_n + j * 8 + (lane & 3) * 2 + (q & 1);
        if (row < M && column < N) C[(size_t)row * N + column] = sum[i][j][q];
      }
}
