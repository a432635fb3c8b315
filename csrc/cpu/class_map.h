#pragma once
// Logits [C, h, w] with any strides <-> rows of [w + 1, lanes] float32, classes contiguous: what the kernels over classes
// work on. lanes is C rounded up to 16; classes that do not exist hold kNoClass, far below every logit. The extra
// column repeats the last one, so that the second source of every position exists.
#include <stdint.h>
#include <string.h>
namespace mesa {

constexpr int64_t kClassPad = 16;
constexpr float kNoClass = -1.0e38f;
inline int64_t class_lanes(int64_t classes) { return (classes + kClassPad - 1) / kClassPad * kClassPad; }

struct MapStrides {
  int64_t channel, row, column;
};

// One row of the map into [w + 1, lanes].
template <class T>
void load_class_row(const T* from, MapStrides stride, int64_t classes, int64_t width, int64_t lanes, float* to) {
  for (int64_t c = 0; c < lanes; c += kClassPad) {
    const int64_t n = classes - c < kClassPad ? classes - c : kClassPad;
    const T* column = from + c * stride.channel;
    for (int64_t x = 0; x < width; ++x, column += stride.column) {
      float* place = to + x * lanes + c;
      for (int64_t i = 0; i < n; ++i) place[i] = static_cast<float>(column[i * stride.channel]);
      for (int64_t i = n; i < kClassPad; ++i) place[i] = kNoClass;
    }
  }
  memcpy(to + width * lanes, to + (width - 1) * lanes, lanes * sizeof(float));
}

}  // namespace mesa
