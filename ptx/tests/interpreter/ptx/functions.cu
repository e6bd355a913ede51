// Compiled to functions.ptx by NVRTC 12.9.86 with
// --gpu-architecture=compute_80 --std=c++17 -default-device
//
// Library functions and operators, one result column each. What NVRTC makes of
// them exercises the arithmetic instructions in ways that nobody writes by hand.

extern "C" __global__ void floats(const float* in, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = in[i], a = fabsf(x);
  float* column = out + i;
  auto put = [&](float y) {
    *column = y;
    column += n;
  };
  put(expf(x));
  put(logf(a + 0.01f));
  put(tanhf(x));
  put(sqrtf(a));
  put(x / (1.5f + x * x));
  put(log1pf(a));
  put(expm1f(x));
  put(powf(a + 0.5f, 1.7f));
  put(floorf(x) + 2.f * ceilf(x) + 3.f * rintf(x) + 4.f * truncf(x));
  put(fmodf(x * 10.f, 0.75f));
  put(copysignf(3.f, x) + (isinf(x) ? 1.f : 0.f));
  put((float)(int)(x * 100.f) + (float)(unsigned)(a * 50.f) + (float)(long long)(x * 1e6f));
  put((float)((double)x * 1.000001 + sqrt((double)a) / 3.0));
  put(ldexpf(x, 3));
}

extern "C" __global__ void integers(const int* in, int* out, int n, int k) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  int x = in[i];
  unsigned y = x;
  long long z = (long long)x * k;
  int* column = out + i;
  auto put = [&](int v) {
    *column = v;
    column += n;
  };
  put(x / k);
  put(x % k);
  put((int)(z / (k + 1)));
  put((int)(z % 1000));
  put((int)(y / 7u + y % 13u));
  put(__popc(x) + __clz(x) + __ffs(x));
  put(__brev(x));
  put(__mulhi(x, k) + (int)__umulhi(y, k));
  put((min(x, k) ^ max(x, -k)) | abs(x));
  put((x >> 3) + (int)(y >> 5) + (x << (k & 31)));
  put((short)x + (signed char)x + (unsigned short)x);
  put(__byte_perm(x, k, 0x5410));
  put((int)((unsigned long long)z >> 17));
  put(__funnelshift_l(x, k, 7) + __funnelshift_r(x, k, 9));
  put(x > 0 ? (k < 5 && x < 100 ? 3 : 4) : (x == -5 || k != 3 ? 7 : 8));
  int table[16];
  for (int j = 0; j < 16; j++) table[j] = x * j + k;
  put(table[x & 15] + table[k & 15]);
}
