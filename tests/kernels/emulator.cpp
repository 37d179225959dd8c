// The kernels of fused_vit.cu as functions of a library. Compiled with the kernel's macros, the source's path in KERNEL and STACK, bytes.
#include "emulator.h"

#include KERNEL

extern "C" void emulated_order(int last) { last_first = last; }
extern "C" void emulated_gradient(const byte* images, const int64* labels, const int64* index, int seeds, int count, const float* weights,
                                  float* partial, float* gradient, float* loss) {
  const int groups = (count + IMAGES - 1) / IMAGES;
  emulate({groups, seeds}, THREADS, [=] { differentiate(images, labels, index, count, weights, partial, loss); });
  emulate({(SIZE + 31) / 32, seeds}, 256, [=] { add_up(partial, groups, gradient); });
}
extern "C" void emulated_test(const byte* images, const int64* labels, int seeds, int count, const float* weights, float* loss,
                              int64* predicted) {
  emulate({(count + IMAGES - 1) / IMAGES, seeds}, THREADS, [=] { test(images, labels, count, weights, loss, predicted); });
}
extern "C" void emulated_norm(const float* gradient, int seeds, int, double* result) {
  emulate({1, seeds}, 1024, [=] { gradient_norm(gradient, result); });
}
