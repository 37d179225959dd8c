// Runs the blocks of a CUDA kernel on a CPU: a fiber per CUDA thread, which gives way at every barrier.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

using std::size_t;
struct alignas(16) float4 { float x, y, z, w; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Dimensions { int x = 1, y = 1; };
static Dimensions threadIdx, blockIdx, blockDim, gridDim;
alignas(16) static float emulated_memory[SHARED_BYTES / 4];
#define SHARED emulated_memory
#define __global__
#define __host__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)

struct Barrier { int arrived = 0, generation = 0, size = 0; };
struct Fiber {
  ucontext_t start;
  jmp_buf context;
  std::unique_ptr<char[]> stack;
  Barrier* waits_for = nullptr;
  int generation = 0;
  bool started = false, done = false;
};
static std::vector<Fiber> fibers;
static jmp_buf scheduler;
static Barrier block_barrier;
static std::vector<Barrier> warp_barriers;
static std::vector<float> shuffled;
static std::vector<char> votes;
static std::function<void()> kernel;
static bool last_first = false;  // the order in which threads run: what differs between the two orders lacks a barrier

inline void arrive(Barrier& barrier) {
  const int thread = threadIdx.x;
  Fiber& me = fibers[thread];
  me.generation = barrier.generation;
  if (++barrier.arrived == barrier.size) { barrier.arrived = 0; ++barrier.generation; return; }
  me.waits_for = &barrier;
  if (!_setjmp(me.context)) _longjmp(scheduler, 1);
  threadIdx.x = thread;
}
inline void __syncthreads() { arrive(block_barrier); }
inline void __syncwarp() { arrive(warp_barriers[threadIdx.x / 32]); }
inline float __shfl_xor_sync(unsigned, float value, int mask) {
  shuffled[threadIdx.x] = value;
  __syncwarp();
  const float other = shuffled[threadIdx.x ^ mask];
  __syncwarp();
  return other;
}
inline bool __any_sync(unsigned, bool value) {
  votes[threadIdx.x] = value;
  __syncwarp();
  bool any = false;
  for (int i = 0; i < 32; ++i) any |= votes[threadIdx.x / 32 * 32 + i];
  __syncwarp();
  return any;
}
inline unsigned __float_as_uint(float x) { unsigned u; std::memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; std::memcpy(&x, &u, 4); return x; }
inline unsigned atomicMax(unsigned* place, unsigned value) { return std::exchange(*place, std::max(*place, value)); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

inline void enter() {
  kernel();
  fibers[threadIdx.x].done = true;
  _longjmp(scheduler, 1);
}

template <class F> void emulate(Dimensions grid, int threads, F f) {
  gridDim = grid; blockDim = {threads, 1}; kernel = f;
  shuffled.resize(threads); votes.resize(threads);
  if ((int)fibers.size() < threads) fibers = std::vector<Fiber>(threads);
  for (int y = 0; y < grid.y; ++y) for (int x = 0; x < grid.x; ++x) {
    blockIdx = {x, y}; block_barrier = {0, 0, threads}; warp_barriers.assign(threads / 32, {0, 0, 32});
    std::fill(std::begin(emulated_memory), std::end(emulated_memory), std::numeric_limits<float>::quiet_NaN());  // a read before a write shows
    for (int t = 0; t < threads; ++t) {
      Fiber& one = fibers[t];
      if (!one.stack) one.stack.reset(new char[STACK]);
      one.started = one.done = false; one.waits_for = nullptr;
    }
    for (volatile bool any = true; any;) {
      volatile bool moved = false;
      any = false;
      for (volatile int i = 0; i < threads; i = i + 1) {
        const int t = last_first ? threads - 1 - i : i;
        Fiber& one = fibers[t];
        if (one.done) continue;
        any = true;
        if (one.waits_for && one.waits_for->generation == one.generation) continue;
        one.waits_for = nullptr; threadIdx = {t, 0}; moved = true;
        if (_setjmp(scheduler)) continue;
        if (one.started) _longjmp(one.context, 1);
        one.started = true;
        getcontext(&one.start);
        one.start.uc_stack.ss_sp = one.stack.get(); one.start.uc_stack.ss_size = STACK; one.start.uc_link = nullptr;
        makecontext(&one.start, enter, 0);
        setcontext(&one.start);
      }
      if (any && !moved) std::abort();  // threads wait for one another for ever
    }
  }
}
