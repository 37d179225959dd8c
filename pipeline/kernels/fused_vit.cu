// Loss and gradient of a small vision transformer in one kernel: from the bytes of images to the gradient of every weight.
//
// Who owns what. A block of threads takes IMAGES images of one seed from their pixels to their share of the gradient. A thread owns four
//   neighbouring channels of up to N = PER_THREAD tokens of one image; LANES = D / 4 neighbouring threads, a slot, own whole tokens. So
//   the residual stream stays in registers, a sum over a token's channels takes log2(LANES) shuffles, and a row that a linear layer needs
//   whole is exchanged inside a warp. Slot p has the tokens p, p + SLOTS, ... Slots and tokens that are one too many repeat the image's
//   last token, and images beyond the batch its last image: what they compute is finite where the original is, and their gradient is zero.
// What lies where. The weights of a seed lie in global memory in the order of `Layout` (fused_vit_layout.py), whose offsets are macros
//   here. What is outside of the encoder's blocks, and the weights of the one block that is worked on, are copied to shared memory. A
//   matrix maps INPUTS inputs to D outputs, row by row, then its bias; row i has its groups of four in the order group XOR (i / 4), so that
//   rows and columns are read without bank conflicts. The largest part of shared memory, `area`, holds by turns: keys, values, queries and
//   the gradients of attention's outputs; rows of tokens (Y, DH, A, DX), for linear layers and gradients of weights; partial sums. What the
//   backward pass needs of each encoder block (its input, attention's output, each row's shift and 1 / sum) stays in the thread's local
//   memory, and the rest is computed again.
// Softmax. |q| times the largest |k| bounds every score (Cauchy and Schwarz), so no pass looks for the maximum. Where the bound is over 50
//   (in powers of two), the exponentials could underflow, and the warp takes the exact maximum.
// Order of sums. Nothing is added atomically. Each of SHARES groups of threads adds up every SHARES-th row, then the groups' sums are added
//   in order. Every block writes a partial gradient of its own, and `add_up` adds those of a seed in order. The partition depends on the
//   shape and the batch alone, so a seed's bits depend neither on its neighbours nor on their number.
//
// The macros are those of `macros` in fused_vit_layout.py. tests/kernels/emulator.h has CUDA's words for a CPU.
typedef unsigned char byte; typedef long long int64;
enum { NORM_none, NORM_pre, NORM_post, RESIDUAL_none, RESIDUAL_input, RESIDUAL_normalized, POSITION_none, POSITION_sinusoidal,
       POSITION_sincos2d, POSITION_learned, POOL_cls, POOL_first, POOL_mean, POOL_max, POOL_attention, POOL_concat };
constexpr bool PRE = NORM == NORM_pre, POST = NORM == NORM_post, NORMS = PRE || POST, CONCAT = POOL == POOL_concat;
constexpr bool SKIP = RESIDUAL != RESIDUAL_none;  // whether a residual goes past attention
constexpr float LOG2E = 1.4426950408889634f, LOG_OF_2 = 0.69314718055994531f;
constexpr int GRID = SIDE / PATCH, PATCHES = GRID * GRID, TOKENS = PATCHES + CLS, PIXELS = SIDE * SIDE, PATCH_PIXELS = PATCH * PATCH;
constexpr int HEAD_DIM = D / HEADS, KEYS = TOKENS + MEMORY, MEMORIES = MEMORY ? MEMORY : 1;
constexpr int IN = FULL ? D : HEAD_DIM > 4 ? HEAD_DIM : 4;  // inputs of a query; two heads of two channels are one matrix with zeros
constexpr int HEADS_HERE = HEAD_DIM == 2 ? 2 : 1;           // heads of which a thread owns channels
constexpr int N = PER_THREAD, LANES = D / 4, SLOTS = (TOKENS + N - 1) / N, WARPS = THREADS / 32;
constexpr int ALL_SLOTS = THREADS / LANES, ROWS = N * ALL_SLOTS, STRIDE = D + 4;  // rows that are exchanged, and their distance
constexpr bool EXCHANGE = IN > 4;                           // the inputs of a query lie with several threads
constexpr bool KEEP_MIDDLE = FULL || POST;                  // the sum after attention is not just input + output

#define CONSTANT __host__ __device__ constexpr int
CONSTANT larger(int a, int b) { return a > b ? a : b; }
CONSTANT matrix(int inputs) { return (inputs + 1) * D; }
CONSTANT tall(int inputs) { return inputs < 8 ? 4 : 8; }  // inputs of a tile of a matrix's gradient
CONSTANT tiles(int inputs) { return inputs / tall(inputs) * LANES; }
CONSTANT shares(int units) { return larger(1, THREADS / units); }
// the parts of an encoder block's weights
constexpr int LN1 = 0, QKV = LN1 + 2 * D * NORMS, OUT = QKV + 3 * matrix(IN), MEM = OUT + matrix(D) * FULL, LN2 = MEM + 2 * MEMORY * D,
              FC1 = LN2 + 2 * D * NORMS, FC2 = FC1 + matrix(D), BLOCK = FC2 + matrix(D);
// the parts of shared memory, in floats
constexpr int EMBED_UNITS = (PATCH_PIXELS + 3) / 4 * LANES, EMBED_SHARES = shares(EMBED_UNITS), EMBED_LENGTH = (PATCH_PIXELS + 1) * D;
constexpr int ROW_AREA = ROWS * STRIDE, KEY_AREA = IMAGES * KEYS * D, QUERY_AREA = IMAGES * TOKENS * D;
constexpr int STATISTICS = IMAGES * TOKENS * LANES * HEADS_HERE, PIXEL_AREA = (IMAGES * PIXELS + 3) / 4 * 4, SUMS = 4 * WARPS * D;
constexpr int MEMORY_SUMS = IMAGES * 2 * MEMORY * D, LONGEST = IMAGES * LANES * HEADS_HERE, LOGITS = (IMAGES * CLASSES + 3) / 4 * 4;
constexpr int HEAD_AREA = CONCAT ? ALL_SLOTS * CLASSES : IMAGES * (D + TOKENS);
static_assert(BLOCK == BLOCK_SIZE && SIZE % 4 == 0, "the layout's sizes");
static_assert(THREADS >= IMAGES * SLOTS * LANES && THREADS % 32 == 0 && THREADS >= 3 * tiles(IN) && THREADS >= 2 * tiles(D), "threads");
static_assert(AREA >= 4 * ROW_AREA && AREA >= 2 * KEY_AREA + larger(ROW_AREA, 2 * QUERY_AREA + 2 * STATISTICS) &&
              AREA >= shares(3 * tiles(IN)) * 3 * matrix(IN) && AREA >= shares(2 * tiles(D)) * 2 * matrix(D) &&
              AREA >= shares(tiles(D)) * matrix(D) && AREA >= ROW_AREA + (EMBED_SHARES > 1) * EMBED_SHARES * EMBED_LENGTH, "area");
static_assert(SHARED_BYTES >= 4 * (BLOCKS_AT + BLOCK + PIXEL_AREA + AREA + SUMS + MEMORY_SUMS + LONGEST + LOGITS + HEAD_AREA), "shared");

#define DEVICE __device__ __forceinline__
#define F4(x) (*reinterpret_cast<float4*>(x))
#define CF4(x) (*reinterpret_cast<const float4*>(x))
#define UNROLLED _Pragma("unroll")
#define UNROLL(times) _Pragma(#times)
#define EACH_TOKEN UNROLLED for (int u = 0; u < N; ++u)
#ifndef SHARED  // the emulator has its own
extern __shared__ float4 shared_memory[];
#define SHARED reinterpret_cast<float*>(shared_memory)
#endif

DEVICE float4 all(float s) { return make_float4(s, s, s, s); }
DEVICE float4 operator+(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
DEVICE float4 operator*(float4 a, float4 b) { return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w); }
DEVICE float4 operator*(float4 a, float s) { return a * all(s); }
DEVICE float4 kept(bool keep, float4 a) { return keep ? a : all(0.f); }
DEVICE float total(float4 a) { return (a.x + a.y) + (a.z + a.w); }
DEVICE float dot(float4 a, float4 b, float s = 0.f) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, s)))); }
DEVICE float4 fused(float4 a, float4 b, float4 c) {
  return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}
DEVICE void axpy(float4& y, float a, float4 x) { y = fused(all(a), x, y); }
DEVICE float power_of_2(float x) {
#ifdef __CUDA_ARCH__
  float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y;
#else
  return exp2f(x);
#endif
}
template <int COUNT> DEVICE float lane_sum(float x) {  // over COUNT neighbouring threads, of which each gets the same bits
  UNROLLED for (int m = 1; m < COUNT; m <<= 1) x += __shfl_xor_sync(~0u, x, m);
  return x;
}

struct Heads { float of[HEADS_HERE]; };  // a number for each head of which the thread owns channels
template <class F> DEVICE Heads each(F f) {
  Heads s;
  UNROLLED for (int i = 0; i < HEADS_HERE; ++i) s.of[i] = f(i);
  return s;
}
DEVICE Heads operator+(Heads a, Heads b) { return each([&](int i) { return a.of[i] + b.of[i]; }); }
DEVICE Heads operator*(Heads a, Heads b) { return each([&](int i) { return a.of[i] * b.of[i]; }); }
DEVICE Heads operator-(Heads a) { return each([&](int i) { return -a.of[i]; }); }
DEVICE Heads power_of_2(Heads a) { return each([&](int i) { return power_of_2(a.of[i]); }); }
DEVICE float4 spread(Heads a) { return make_float4(a.of[0], a.of[0], a.of[HEADS_HERE - 1], a.of[HEADS_HERE - 1]); }
DEVICE void axpy(float4& y, Heads a, float4 x) { y = fused(spread(a), x, y); }
DEVICE Heads scores(float4 a, float4 b, Heads start = Heads{}) {  // start + a . b of each head; a wide head's threads share the sum
  if (HEAD_DIM > 4) return Heads{lane_sum<HEAD_DIM / 4>(dot(a, b)) + start.of[0]};
  if (HEAD_DIM == 4) return Heads{dot(a, b, start.of[0])};
  return each([&](int i) { return i ? fmaf(a.w, b.w, fmaf(a.z, b.z, start.of[i])) : fmaf(a.y, b.y, fmaf(a.x, b.x, start.of[i])); });
}

// Layer norm of a token, of which this thread has four channels: normalised values, and 1 / standard deviation.
DEVICE float4 normalise(float4 x, float& inverse) {
  const float4 d = x + all(lane_sum<LANES>(total(x)) * (-1.f / D));
  inverse = rsqrtf(lane_sum<LANES>(dot(d, d)) * (1.f / D) + (float)NORM_EPS);
  return d * inverse;
}
DEVICE float4 affine(float4 n, const float* norm, int h) { return fused(n, CF4(norm + 4 * h), CF4(norm + D + 4 * h)); }
DEVICE float4 norm_backward(float4 dy, float4 n, float inverse, const float* norm, int h) {
  const float4 d = dy * CF4(norm + 4 * h);
  const float mean = lane_sum<LANES>(total(d)) * (1.f / D), along = lane_sum<LANES>(dot(d, n)) * (1.f / D);
  return (d + all(-mean) + n * -along) * inverse;
}

// The thread's four outputs of a matrix, for each of its tokens. Four inputs are its own channels; more are read from rows.
template <int INPUTS>
DEVICE void linear(const float* w, const float4 (&own)[N], const float* rows, const int (&row)[N], int h, float4 (&out)[N]) {
  constexpr int GROUPS = INPUTS / 4;
  EACH_TOKEN out[u] = CF4(w + INPUTS * D + 4 * h);
  UNROLLED for (int k = 0; k < GROUPS; ++k) {
    const float* at = w + 4 * k * D + 4 * (h ^ k);
    const float4 w0 = CF4(at), w1 = CF4(at + D), w2 = CF4(at + 2 * D), w3 = CF4(at + 3 * D);
    EACH_TOKEN {
      const float4 y = INPUTS == 4 ? own[u] : CF4(rows + row[u] * STRIDE + 4 * (h - h % GROUPS + k));
      axpy(out[u], y.x, w0); axpy(out[u], y.y, w1); axpy(out[u], y.z, w2); axpy(out[u], y.w, w3);
    }
  }
}
// Adds to `to` the gradient of the thread's four inputs, given that of the outputs.
template <int INPUTS>
DEVICE void linear_backward(const float* w, const float4 (&own)[N], const float* rows, const int (&row)[N], int h, float4 (&to)[N]) {
  constexpr int GROUPS = INPUTS / 4;
  const int mine = h % GROUPS, start = h - mine;
  UNROLLED for (int k = 0; k < GROUPS; ++k) {
    const float* at = w + 4 * mine * D + 4 * ((start + k) ^ mine);
    const float4 w0 = CF4(at), w1 = CF4(at + D), w2 = CF4(at + 2 * D), w3 = CF4(at + 3 * D);
    EACH_TOKEN {
      const float4 d = INPUTS == 4 ? own[u] : CF4(rows + row[u] * STRIDE + 4 * (start + k));
      to[u] = make_float4(dot(w0, d, to[u].x), dot(w1, d, to[u].y), dot(w2, d, to[u].z), dot(w3, d, to[u].w));
    }
  }
}
template <int PARTS> DEVICE void add_parts(const float* parts, int distance, int length, float* to) {  // the block's threads, in order
  for (int i = threadIdx.x * 4; i < length; i += THREADS * 4) {
    float4 s = {};
    UNROLLED for (int j = 0; j < PARTS; ++j) s = s + CF4(parts + j * distance + i);
    F4(to + i) = s;
  }
}
// The gradients of neighbouring matrices: sums over all rows of input times gradient of the output. A thread has a tile of TALL inputs by
// four outputs of one matrix, for its share of the rows. All threads have to have written the rows; ends with a barrier.
template <int INPUTS, int MATRICES>
DEVICE void weight_gradients(const float* const (&left)[MATRICES], const float* const (&right)[MATRICES], float* scratch, float* to) {
  constexpr int TALL = tall(INPUTS), UNITS = MATRICES * tiles(INPUTS), SHARES = shares(UNITS), LENGTH = matrix(INPUTS);
  const int unit = threadIdx.x % UNITS, share = threadIdx.x / UNITS, m = unit / tiles(INPUTS);
  const int k = unit % tiles(INPUTS) / LANES, o = unit % LANES; const float *a = left[0], *b = right[0];
  UNROLLED for (int i = 1; i < MATRICES; ++i) if (m == i) { a = left[i]; b = right[i]; }
  a += 4 * o / INPUTS * INPUTS + TALL * k;  // the tile's inputs, among those that output group o has
  float4 tile[TALL] = {}, bias = {};
  for (int r = share; r < ROWS && share < SHARES; r += SHARES) {
    const float4 d = CF4(b + r * STRIDE + 4 * o);
    UNROLLED for (int i = 0; i < TALL; i += 4) {
      const float4 y = CF4(a + r * STRIDE + i);
      axpy(tile[i], y.x, d); axpy(tile[i + 1], y.y, d); axpy(tile[i + 2], y.z, d); axpy(tile[i + 3], y.w, d);
    }
    bias = bias + d;
  }
  if (HEAD_DIM == 2 && INPUTS == 4) {  // no weight joins two heads
    tile[0].z = tile[0].w = tile[1].z = tile[1].w = tile[2].x = tile[2].y = tile[3].x = tile[3].y = 0.f;
  }
  __syncthreads();
  if (share < SHARES) {
    float* at = scratch + (share * MATRICES + m) * LENGTH;
    UNROLLED for (int i = 0; i < TALL; ++i) F4(at + (TALL * k + i) * D + 4 * (o ^ ((TALL * k + i) / 4))) = tile[i];
    if (k == 0) F4(at + INPUTS * D + 4 * o) = bias;
  }
  __syncthreads(); add_parts<SHARES>(scratch, MATRICES * LENGTH, MATRICES * LENGTH, to); __syncthreads();
}

DEVICE float activation(float x) { return GELU ? 0.5f * x * (1.f + erff(x * 0.70710678118654752f)) : x < 0.f ? 0.f : x; }
DEVICE float slope(float x) {
  if (!GELU) return x > 0.f ? 1.f : 0.f;
  return 0.5f * (1.f + erff(x * 0.70710678118654752f)) + x * 0.3989422804014327f * power_of_2(-0.5f * LOG2E * x * x);
}
DEVICE float4 activation(float4 x) { return make_float4(activation(x.x), activation(x.y), activation(x.z), activation(x.w)); }
DEVICE float4 slope(float4 x) { return make_float4(slope(x.x), slope(x.y), slope(x.z), slope(x.w)); }

template <bool TRAIN>
DEVICE void run(const byte* __restrict__ images, const int64* __restrict__ labels, const int64* __restrict__ index, int count,
                const float* __restrict__ weights, float* __restrict__ gradient, float* __restrict__ loss, int64* __restrict__ predicted) {
  float* const fixed = SHARED;  // weights outside of the encoder's blocks
  float *const block = fixed + BLOCKS_AT, *const pixel = block + BLOCK, *const area = pixel + PIXEL_AREA;
  float *const sums = area + AREA, *const memory_sums = sums + SUMS;
  unsigned* const longest = reinterpret_cast<unsigned*>(memory_sums + MEMORY_SUMS);  // per image and head: the largest |key|^2, as bits
  float *const dlogits = memory_sums + MEMORY_SUMS + LONGEST, *const head_area = dlogits + LOGITS;
  float *const K = area, *const V = K + KEY_AREA, *const Q = V + KEY_AREA, *const U = Q + QUERY_AREA;  // by token, D apart
  float *const shifts = U + QUERY_AREA, *const slants = shifts + STATISTICS, *const forward_rows = V + KEY_AREA;
  float *const Y = area, *const DH = Y + ROW_AREA, *const A = DH + ROW_AREA, *const DX = A + ROW_AREA;  // by row, STRIDE apart

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, h = tid % LANES, slot = tid / LANES;
  const int g = slot / SLOTS < IMAGES ? slot / SLOTS : IMAGES - 1, p = slot - g * SLOTS, first = blockIdx.x * IMAGES;
  const bool leads = p == 0 && h == 0, there = first + g < count;
  int token[N], row[N]; bool own[N];
  EACH_TOKEN { row[u] = u * ALL_SLOTS + slot; own[u] = p < SLOTS && p + u * SLOTS < TOKENS; }
  EACH_TOKEN token[u] = own[u] ? p + u * SLOTS : TOKENS - 1;
  auto example = [&](int image) { return first + image < count ? first + image : count - 1; };
  auto place = [&](int image) { return index ? (int)index[example(image)] : example(image); };
  auto corner = [&](int image, int patch) { return pixel + image * PIXELS + patch / GRID * PATCH * SIDE + patch % GRID * PATCH; };
  auto write = [&](float* rows, const float4 (&values)[N]) { EACH_TOKEN F4(rows + row[u] * STRIDE + 4 * h) = values[u]; };
  auto exchange = [&](const float4 (&values)[N]) { __syncwarp(); write(forward_rows, values); __syncwarp(); };
  auto stage = [&](int l) {  // copies a block's weights
    for (int i = tid * 4; i < BLOCK; i += THREADS * 4) F4(block + i) = CF4(weights + BLOCKS_AT + l * BLOCK + i);
    for (int i = tid; i < LONGEST; i += THREADS) longest[i] = 0;
  };
  auto project = [&](float* rows, const float4 (&y)[N], float4 (&q)[N], float4 (&k)[N], float4 (&v)[N]) {
    if (EXCHANGE) { write(rows, y); __syncwarp(); }
    linear<IN>(block + QKV, y, rows, row, h, q);
    linear<IN>(block + QKV + matrix(IN), y, rows, row, h, k);
    linear<IN>(block + QKV + 2 * matrix(IN), y, rows, row, h, v);
    EACH_TOKEN q[u] = q[u] * ((float)SCORE_SCALE * LOG2E);
  };
  auto write_keys = [&](const float4 (&k)[N], const float4 (&v)[N]) {
    const int mine = g * KEYS * D + 4 * h;
    EACH_TOKEN if (own[u]) { F4(K + mine + token[u] * D) = k[u]; F4(V + mine + token[u] * D) = v[u]; }
    for (int i = tid * 4; i < IMAGES * MEMORY * D; i += THREADS * 4) {
      const int at = i % (MEMORIES * D), to = (i / (MEMORIES * D) * KEYS + TOKENS) * D + at;
      F4(K + to) = CF4(block + MEM + at); F4(V + to) = CF4(block + MEM + MEMORY * D + at);
    }
  };
  auto lengthen = [&](int image, float4 k) {
    const Heads square = scores(k, k);
    each([&](int i) { return (float)atomicMax(longest + (image * LANES + h) * HEADS_HERE + i, __float_as_uint(square.of[i])); });
  };
  auto each_memory = [&](auto f) {  // memory slots, spread over the slots of threads; all threads of a warp go along
    for (int m = slot; m - slot < IMAGES * MEMORY; m += ALL_SLOTS) {
      const int at = m < IMAGES * MEMORY ? m : IMAGES * MEMORY - 1;
      const float* key = block + MEM + at % MEMORIES * D + 4 * h;
      f(at / MEMORIES, at % MEMORIES, CF4(key), CF4(key + MEMORY * D));
    }
  };
  auto deposit = [&](int which, float4 v) {  // a warp's sum over its slots; `collect` adds the warps' after a barrier
    UNROLLED for (int m = LANES; m < 32; m <<= 1) {
      const float x = __shfl_xor_sync(~0u, v.x, m), y = __shfl_xor_sync(~0u, v.y, m), z = __shfl_xor_sync(~0u, v.z, m);
      v = v + make_float4(x, y, z, __shfl_xor_sync(~0u, v.w, m));
    }
    if (lane < LANES) F4(sums + (warp * 4 + which) * D + 4 * h) = v;
  };
  auto deposit_norm = [&](int which, const float4 (&d)[N], const float4 (&n)[N]) {  // gradients of a norm's gain and bias
    float4 gain = {}, bias = {};
    EACH_TOKEN { gain = gain + kept(own[u], d[u] * n[u]); bias = bias + kept(own[u], d[u]); }
    deposit(which, gain); deposit(which + 1, bias);
  };
  auto collect = [&](int which, int vectors, float* to) { add_parts<WARPS>(sums + which * D, 4 * D, vectors * D, to); };

  // ---- pixels and embedding ----
  for (int i = tid * 4; i < BLOCKS_AT; i += THREADS * 4) F4(fixed + i) = CF4(weights + i);
  for (int j = 0; j < IMAGES; ++j) {
    const byte* image = images + (int64)place(j) * PIXELS;
    for (int i = tid; i < PIXELS; i += THREADS) pixel[j * PIXELS + i] = image[i] / 255.f;
  }
  __syncthreads();
  float4 x[N];  // the residual stream
  EACH_TOKEN x[u] = CF4(fixed + EMBED + PATCH_PIXELS * D + 4 * h);
  UNROLL(unroll 4) for (int i = 0; i < PATCH_PIXELS; ++i) {
    const float4 w = CF4(fixed + EMBED + i * D + 4 * h);
    EACH_TOKEN axpy(x[u], corner(g, token[u] < CLS ? 0 : token[u] - CLS)[i / PATCH * SIDE + i % PATCH], w);
  }
  EACH_TOKEN {
    if (token[u] < CLS) x[u] = CF4(weights + CLS_AT + 4 * h);
    if (POSITION != POSITION_none) x[u] = x[u] + CF4(weights + POSITION_AT + token[u] * D + 4 * h);
  }

  // ---- forward: the encoder's blocks ----
  float4 in[BLOCKS][N], out[BLOCKS][N], middle[KEEP_MIDDLE ? BLOCKS : 1][N], last[POST ? BLOCKS : 1][N];
  Heads shift[BLOCKS][N], inverse[BLOCKS][N];
  const float *const Kg = K + g * KEYS * D + 4 * h, *const Vg = V + g * KEYS * D + 4 * h; float unused;
  UNROLL(unroll 1) for (int l = 0; l < BLOCKS; ++l) {
    stage(l); __syncthreads();
    float4 y[N], q[N], o[N]; Heads a[N], s[N];
    EACH_TOKEN y[u] = PRE ? affine(normalise(x[u], unused), block + LN1, h) : x[u];
    {
      float4 k[N], v[N];
      project(forward_rows, y, q, k, v); write_keys(k, v);
      EACH_TOKEN lengthen(g, k[u]);
      each_memory([&](int image, int, float4 key, float4) { lengthen(image, key); });
    }
    __syncthreads(); bool loose = false;
    EACH_TOKEN {
      const Heads square = scores(q[u], q[u]);
      const unsigned* largest = longest + (g * LANES + h) * HEADS_HERE;
      a[u] = each([&](int i) { return sqrtf(square.of[i]) * sqrtf(__uint_as_float(largest[i])) * -1.0001f; });
      loose |= a[u].of[0] < -50.f || a[u].of[HEADS_HERE - 1] < -50.f; s[u] = Heads{}; o[u] = all(0.f);
    }
    if (__any_sync(~0u, loose)) {
      EACH_TOKEN a[u] = each([](int) { return 3.4e38f; });
      for (int j = 0; j < KEYS; ++j) {
        EACH_TOKEN { const Heads e = scores(q[u], CF4(Kg + j * D)); a[u] = each([&](int i) { return fminf(a[u].of[i], -e.of[i]); }); }
      }
    }
    UNROLL(unroll 4) for (int j = 0; j < KEYS; ++j) {
      const float4 k = CF4(Kg + j * D), v = CF4(Vg + j * D);
      EACH_TOKEN { const Heads e = power_of_2(scores(q[u], k, a[u])); s[u] = s[u] + e; axpy(o[u], e, v); }
    }
    EACH_TOKEN {
      s[u] = each([&](int i) { return 1.f / s[u].of[i]; }); o[u] = o[u] * spread(s[u]);
      if (TRAIN) { in[l][u] = x[u]; out[l][u] = o[u]; shift[l][u] = a[u]; inverse[l][u] = s[u]; }
    }
    if (FULL) { exchange(o); linear<D>(block + OUT, o, forward_rows, row, h, o); }
    EACH_TOKEN {
      x[u] = SKIP ? x[u] + o[u] : o[u];
      if (TRAIN && KEEP_MIDDLE) middle[l][u] = x[u];
      if (POST) x[u] = affine(normalise(x[u], unused), block + LN1, h);
      y[u] = PRE ? affine(normalise(x[u], unused), block + LN2, h) : x[u];
    }
    exchange(y); linear<D>(block + FC1, y, forward_rows, row, h, q);
    EACH_TOKEN q[u] = activation(q[u]);
    exchange(q); linear<D>(block + FC2, q, forward_rows, row, h, o);
    EACH_TOKEN {
      x[u] = SKIP ? (RESIDUAL == RESIDUAL_normalized ? y[u] : x[u]) + o[u] : o[u];
      if (TRAIN && POST) last[l][u] = x[u];
      if (POST) x[u] = affine(normalise(x[u], unused), block + LN2, h);
    }
    __syncthreads();  // the next block overwrites weights and keys
  }

  // ---- pool and head: every thread computes the logits of its image ----
  float4 f[N], n[N]; float final_inverse[N];
  EACH_TOKEN {
    f[u] = n[u] = x[u];
    if (FINAL_NORM) { n[u] = normalise(x[u], final_inverse[u]); f[u] = affine(n[u], fixed + FINAL_AT, h); }
    if (own[u]) F4(area + (g * TOKENS + token[u]) * D + 4 * h) = f[u];
  }
  const float* const head = (CONCAT ? weights : fixed) + HEAD_AT;
  float* const token_score = head_area + IMAGES * D + g * TOKENS;
  if (POOL == POOL_attention) EACH_TOKEN {
    const float score = lane_sum<LANES>(dot(f[u], CF4(fixed + QUERY_AT + 4 * h))) * (float)QUERY_SCALE;
    if (h == 0 && own[u]) token_score[token[u]] = score;
  }
  for (int c = 0; CONCAT && c < CLASSES; ++c) {
    float s = 0.f;
    EACH_TOKEN if (own[u] && token[u] >= CLS) s = dot(f[u], CF4(head + (c * PATCHES + token[u] - CLS) * D + 4 * h), s);
    s = lane_sum<LANES>(s);
    if (h == 0) head_area[slot * CLASSES + c] = s;
  }
  __syncthreads();
  float4 pooled = {}, ties = all(1.f); float score_sum = 0.f, score_max = -3.4e38f;
  for (int t = CLS; POOL == POOL_attention && t < TOKENS; ++t) score_max = fmaxf(score_max, token_score[t]);
  for (int t = CLS; POOL == POOL_attention && t < TOKENS; ++t) score_sum += power_of_2((token_score[t] - score_max) * LOG2E);
  auto pool_weight = [&](int t) {  // of a token; for POOL_max and POOL_concat unused
    if (POOL == POOL_cls || POOL == POOL_first) return t == (POOL == POOL_cls ? 0 : CLS) ? 1.f : 0.f;
    if (t < CLS) return 0.f;
    return POOL == POOL_mean ? 1.f / PATCHES : power_of_2((token_score[t] - score_max) * LOG2E) / score_sum;
  };
  auto final_token = [&](int t) { return CF4(area + (g * TOKENS + t) * D + 4 * h); };
  if (POOL == POOL_max) {
    pooled = final_token(CLS);
    for (int t = CLS + 1; t < TOKENS; ++t) {
      const float4 v = final_token(t);
      UNROLLED for (int i = 0; i < 4; ++i) {
        const float value = (&v.x)[i];
        float &most = (&pooled.x)[i], &equal = (&ties.x)[i];  // how many tokens share the maximum, and so its gradient
        if (value > most || value != value) { most = value; equal = 1.f; } else if (value == most) { equal += 1.f; }  // NaN wins
      }
    }
  } else if (!CONCAT) {
    constexpr int FROM = POOL == POOL_cls ? 0 : CLS, TO = POOL == POOL_mean || POOL == POOL_attention ? TOKENS : FROM + 1;
    for (int t = FROM; t < TO; ++t) axpy(pooled, pool_weight(t), final_token(t));
  }
  float logit[CLASSES], normaliser = 0.f, of_label = 0.f;
  UNROLLED for (int c = 0; c < CLASSES; ++c) {
    logit[c] = CONCAT ? 0.f : lane_sum<LANES>(dot(CF4(head + c * D + 4 * h), pooled));
    for (int i = 0; CONCAT && i < SLOTS; ++i) logit[c] += head_area[(g * SLOTS + i) * CLASSES + c];
    logit[c] += weights[HEAD_BIAS_AT + c];
  }
  const int label = (int)labels[place(g)]; int best = 0; float largest = logit[0];
  UNROLLED for (int c = 1; c < CLASSES; ++c) {
    if (largest == largest && !(logit[c] <= largest)) { largest = logit[c]; best = c; }  // NaN wins, as in torch
  }
  UNROLLED for (int c = 0; c < CLASSES; ++c) {
    if (c == label) of_label = logit[c] - largest; logit[c] = expf(logit[c] - largest); normaliser += logit[c];
  }
  if (leads && there) { loss[first + g] = logf(normaliser) - of_label; if (!TRAIN) predicted[first + g] = best; }
  if (!TRAIN) return;

  // ---- backward: head and pool; d becomes the gradient of what the thread owns of the residual stream ----
  float4 d[N] = {}, dpooled = {}, dquery = {};
  UNROLLED for (int c = 0; c < CLASSES; ++c) {
    const float e = (logit[c] / normaliser - (c == label ? 1.f : 0.f)) * (there ? 1.f / count : 0.f);
    if (leads) dlogits[g * CLASSES + c] = e;
    if (!CONCAT) axpy(dpooled, e, CF4(head + c * D + 4 * h));
    EACH_TOKEN if (CONCAT && own[u] && token[u] >= CLS) axpy(d[u], e, CF4(head + (c * PATCHES + token[u] - CLS) * D + 4 * h));
  }
  if (!CONCAT && p == 0) F4(head_area + g * D + 4 * h) = pooled;
  EACH_TOKEN if (POOL == POOL_max) {
    UNROLLED for (int i = 0; i < 4; ++i) {
      if (own[u] && token[u] >= CLS && (&f[u].x)[i] == (&pooled.x)[i]) (&d[u].x)[i] = (&dpooled.x)[i] / (&ties.x)[i];
    }
  } else if (!CONCAT) {
    const float weight = pool_weight(token[u]);
    d[u] = kept(own[u] && weight != 0.f, dpooled * weight);
    if (POOL == POOL_attention) {
      const float dscore = weight * lane_sum<LANES>(dot(f[u], dpooled) - dot(pooled, dpooled)) * (float)QUERY_SCALE;
      axpy(d[u], own[u] ? dscore : 0.f, CF4(fixed + QUERY_AT + 4 * h));
      dquery = dquery + kept(own[u], f[u] * dscore);
    }
  }
  if (POOL == POOL_attention) deposit(2, dquery);
  if (FINAL_NORM) {
    deposit_norm(0, d, n);
    EACH_TOKEN d[u] = norm_backward(d[u], n[u], final_inverse[u], fixed + FINAL_AT, h);
  }
  __syncthreads(); if (FINAL_NORM) collect(0, 2, gradient + FINAL_AT);
  if (POOL == POOL_attention) collect(2, 1, gradient + QUERY_AT);
  for (int i = tid; i < CLASSES * HEAD_INPUTS; i += THREADS) {
    const float* input = CONCAT ? area + CLS * D + i % HEAD_INPUTS : head_area + i % HEAD_INPUTS;
    float s = 0.f;
    for (int j = 0; j < IMAGES; ++j) s = fmaf(dlogits[j * CLASSES + i / HEAD_INPUTS], input[j * (CONCAT ? TOKENS * D : D)], s);
    gradient[HEAD_AT + i] = s;
  }
  for (int c = tid; c < CLASSES; c += THREADS) {
    gradient[HEAD_BIAS_AT + c] = 0.f;
    for (int j = 0; j < IMAGES; ++j) gradient[HEAD_BIAS_AT + c] += dlogits[j * CLASSES + c];
  }
  __syncthreads();

  // ---- backward: the encoder's blocks ----
  UNROLL(unroll 1) for (int l = BLOCKS - 1; l >= 0; --l) {
    float* const to = gradient + BLOCKS_AT + l * BLOCK;
    if (l < BLOCKS - 1) { stage(l); __syncthreads(); }
    float inverse1[N], inverse2[N];
    float4 y[N], t[N], dq[N], dk[N], dv[N];
    {  // MLP: y is its input, t becomes the gradient of that
      const float* norm = block + (PRE ? LN2 : LN1); float4 hidden[N];
      EACH_TOKEN {
        y[u] = KEEP_MIDDLE ? middle[l][u] : SKIP ? in[l][u] + out[l][u] : out[l][u];
        if (NORMS) { n[u] = normalise(y[u], inverse1[u]); y[u] = affine(n[u], norm, h); }
      }
      if (POST) {
        EACH_TOKEN t[u] = normalise(last[l][u], inverse2[u]); deposit_norm(2, d, t);
        EACH_TOKEN d[u] = norm_backward(d[u], t[u], inverse2[u], block + LN2, h);
      }
      write(Y, y); write(DX, d); __syncwarp();
      linear<D>(block + FC1, y, Y, row, h, hidden);
      EACH_TOKEN { y[u] = activation(hidden[u]); t[u] = all(0.f); }
      write(A, y); linear_backward<D>(block + FC2, d, DX, row, h, t);
      EACH_TOKEN hidden[u] = t[u] * slope(hidden[u]);
      write(DH, hidden); __syncwarp();
      EACH_TOKEN t[u] = RESIDUAL == RESIDUAL_normalized || (POST && SKIP) ? d[u] : all(0.f);  // the residual that starts after the norm
      linear_backward<D>(block + FC1, hidden, DH, row, h, t);
      if (NORMS) {
        deposit_norm(PRE ? 2 : 0, t, n);
        EACH_TOKEN t[u] = norm_backward(t[u], n[u], inverse1[u], norm, h);
      }
      EACH_TOKEN d[u] = RESIDUAL == RESIDUAL_input && !POST ? d[u] + t[u] : t[u];  // the residual that starts before it
      __syncthreads(); weight_gradients<D, 2>({Y, A}, {DH, DX}, area, to + FC1);
    }
    // attention: d is the gradient of the sum after it, y the input of the projections
    EACH_TOKEN { y[u] = n[u] = in[l][u]; if (PRE) { n[u] = normalise(n[u], inverse1[u]); y[u] = affine(n[u], block + LN1, h); } }
    {
      float4 q[N], k[N], v[N], o[N], du[N];  // o: the heads' outputs; du: their gradient
      EACH_TOKEN { o[u] = out[l][u]; du[u] = FULL ? all(0.f) : d[u]; }
      if (FULL) { write(A, o); write(DX, d); __syncwarp(); linear_backward<D>(block + OUT, d, DX, row, h, du); }
      project(Y, y, q, k, v);
      if (EXCHANGE) __syncthreads();  // keys lie where the rows do
      if (FULL) weight_gradients<D, 1>({A}, {DX}, area, to + OUT); write_keys(k, v);
      Heads a[N], z[N];  // weight p_ij = exp2(q_i k_j + a_i) / sum_i; its score's gradient p_ij (du_i v_j + z_i)
      EACH_TOKEN {
        du[u] = du[u] * spread(inverse[l][u]);  // so that 1 / sum_i is done with
        a[u] = shift[l][u]; z[u] = -scores(du[u], o[u]); dq[u] = dk[u] = dv[u] = all(0.f);
        const int at = g * TOKENS + token[u];
        if (own[u]) {
          F4(Q + at * D + 4 * h) = q[u]; F4(U + at * D + 4 * h) = du[u];
          each([&](int i) { return shifts[(at * LANES + h) * HEADS_HERE + i] = a[u].of[i]; });
          each([&](int i) { return slants[(at * LANES + h) * HEADS_HERE + i] = z[u].of[i]; });
        }
      }
      __syncthreads();
      UNROLL(unroll 4) for (int j = 0; j < KEYS; ++j) {  // this thread's queries, all keys
        const float4 key = CF4(Kg + j * D), value = CF4(Vg + j * D);
        EACH_TOKEN axpy(dq[u], power_of_2(scores(q[u], key, a[u])) * scores(du[u], value, z[u]), key);
      }
      auto add_query = [&](int at, float4 key, float4 value, float4& dkey, float4& dvalue) {
        const float4 query = CF4(Q + at * D + 4 * h), u = CF4(U + at * D + 4 * h);
        const Heads a = each([&](int i) { return shifts[(at * LANES + h) * HEADS_HERE + i]; });
        const Heads z = each([&](int i) { return slants[(at * LANES + h) * HEADS_HERE + i]; });
        const Heads e = power_of_2(scores(query, key, a));
        axpy(dvalue, e, u); axpy(dkey, e * scores(u, value, z), query);
      };
      UNROLL(unroll 4) for (int i = 0; i < TOKENS; ++i) EACH_TOKEN add_query(g * TOKENS + i, k[u], v[u], dk[u], dv[u]);  // its keys
      EACH_TOKEN {
        dq[u] = dq[u] * (float)SCORE_SCALE;
        dk[u] = kept(own[u], dk[u] * LOG_OF_2); dv[u] = kept(own[u], dv[u]);  // as queries were multiplied by log2(e)
      }
      each_memory([&](int image, int m, float4 key, float4 value) {
        float4 dkey = {}, dvalue = {};
        for (int i = 0; i < TOKENS; ++i) add_query(image * TOKENS + i, key, value, dkey, dvalue);
        F4(memory_sums + (image * 2 * MEMORY + m) * D + 4 * h) = dkey * LOG_OF_2;
        F4(memory_sums + ((image * 2 + 1) * MEMORY + m) * D + 4 * h) = dvalue;
      });
    }
    __syncthreads();
    float *const DQ = DH, *const DK = A, *const DV = DX; write(DQ, dq); write(DK, dk); write(DV, dv); write(Y, y);
    EACH_TOKEN t[u] = all(0.f); if (EXCHANGE) __syncwarp();
    linear_backward<IN>(block + QKV, dq, DQ, row, h, t);
    linear_backward<IN>(block + QKV + matrix(IN), dk, DK, row, h, t);
    linear_backward<IN>(block + QKV + 2 * matrix(IN), dv, DV, row, h, t);
    if (PRE) {
      deposit_norm(0, t, n);
      EACH_TOKEN t[u] = norm_backward(t[u], n[u], inverse1[u], block + LN1, h);
    }
    EACH_TOKEN d[u] = SKIP ? d[u] + t[u] : t[u];
    __syncthreads(); add_parts<IMAGES>(memory_sums, 2 * MEMORY * D, 2 * MEMORY * D, to + MEM);
    if (NORMS) { collect(0, 2, to + LN1); collect(2, 2, to + LN2); }
    weight_gradients<IN, 3>({Y, Y, Y}, {DQ, DK, DV}, area, to + QKV);
  }

  // ---- backward: embedding ----
  write(area, d); __syncthreads();
  auto d_row = [&](int image, int t) { return area + (t / SLOTS * ALL_SLOTS + image * SLOTS + t % SLOTS) * STRIDE; };
  for (int i = tid; i < TOKENS * D; i += THREADS) {
    float s = 0.f; for (int j = 0; j < IMAGES; ++j) s += d_row(j, i / D)[i % D];
    if (POSITION == POSITION_learned) gradient[POSITION_AT + i] = s; if (i < CLS * D) gradient[CLS_AT + i] = s;
  }
  float* const scratch = area + ROW_AREA;  // a thread has four pixels by four channels, for its share of the patches
  for (int unit = EMBED_SHARES > 1 ? tid % EMBED_UNITS : tid; unit < EMBED_UNITS; unit += THREADS) {
    const int k = unit / LANES * 4, o = unit % LANES * 4, share = EMBED_SHARES > 1 ? tid / EMBED_UNITS : 0;
    float4 tile[4] = {}, bias = {};
    for (int r = share; r < IMAGES * PATCHES && share < EMBED_SHARES; r += EMBED_SHARES) {
      const float4 v = CF4(d_row(r / PATCHES, r % PATCHES + CLS) + o);
      const float* const pixels = corner(r / PATCHES, r % PATCHES);
      UNROLLED for (int i = 0; i < 4; ++i) axpy(tile[i], pixels[(k + i) % PATCH_PIXELS / PATCH * SIDE + (k + i) % PATCH], v);
      bias = bias + v;
    }
    float* const sum = EMBED_SHARES > 1 ? scratch + share * EMBED_LENGTH : gradient + EMBED;
    UNROLLED for (int i = 0; i < 4; ++i) if (k + i < PATCH_PIXELS && share < EMBED_SHARES) F4(sum + (k + i) * D + o) = tile[i];
    if (k == 0 && share < EMBED_SHARES) F4(sum + PATCH_PIXELS * D + o) = bias;
  }
  if (EMBED_SHARES == 1) return; __syncthreads();
  add_parts<EMBED_SHARES>(scratch, EMBED_LENGTH, EMBED_LENGTH, gradient + EMBED);
}

// Grid (groups of IMAGES examples, seed). index (seed, count); weights (seed, SIZE); partial (seed, group, SIZE); loss (seed, count).
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
differentiate(const byte* images, const int64* labels, const int64* index, int count, const float* weights, float* partial, float* loss) {
  const int64 seed = blockIdx.y, group = seed * gridDim.x + blockIdx.x;
  run<true>(images, labels, index + seed * count, count, weights + seed * SIZE, partial + group * SIZE, loss + seed * count, nullptr);
}
// All `count` images in order, on the same grid. loss and predicted (seed, count).
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
test(const byte* images, const int64* labels, int count, const float* weights, float* loss, int64* predicted) {
  const int64 seed = blockIdx.y;
  run<false>(images, labels, nullptr, count, weights + seed * SIZE, nullptr, loss + seed * count, predicted + seed * count);
}
// Grid (SIZE / 32, seed): a seed's sum over its groups, zero for what is not trained. Warp w adds groups w, w + 8, ...; then warps follow.
extern "C" __global__ void __launch_bounds__(256) add_up(const float* __restrict__ partial, int groups, float* __restrict__ gradient) {
  const int i = blockIdx.x * 32 + threadIdx.x % 32;
  const float* const from = partial + (int64)blockIdx.y * groups * SIZE + i;
  float s = 0.f;
  UNROLL(unroll 8) for (int g = threadIdx.x / 32; g < groups && i < TRAINED; g += 8) s += from[(int64)g * SIZE];
  SHARED[threadIdx.x] = s; __syncthreads(); UNROLLED for (int w = 1; w < 8; ++w) s += SHARED[w * 32 + threadIdx.x % 32];
  if (threadIdx.x < 32 && i < SIZE) gradient[(int64)blockIdx.y * SIZE + i] = s;
}
// Grid (1, seed): the length of a seed's gradient, in float64.
extern "C" __global__ void __launch_bounds__(1024) gradient_norm(const float* gradient, double* result) {
  double* const squares = reinterpret_cast<double*>(SHARED); double s = 0.;
  const float* const of_seed = gradient + (int64)blockIdx.y * SIZE;
  for (int i = threadIdx.x; i < SIZE; i += 1024) s += (double)of_seed[i] * of_seed[i];
  squares[threadIdx.x] = s;
  for (int m = 512; m; m /= 2) {
    __syncthreads();
    if (threadIdx.x < m) squares[threadIdx.x] += squares[threadIdx.x + m];
  }
  if (threadIdx.x == 0) result[blockIdx.y] = sqrt(squares[0]);
}
