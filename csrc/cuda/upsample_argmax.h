#pragma once
#include "launch.h"
namespace mesa {

constexpr int kMaxMaps = 32;

// Sources of the positions along an axis, `count` for each; weight 0 where there are fewer.
struct TapList {
  const int32_t* index;
  const float* weight;
  int count;
};
struct ArgmaxMap {
  const void* logits;
  int64_t channel, row, column;  // strides
  int height, width;
  TapList rows, columns;
};
struct ArgmaxMaps {
  ArgmaxMap map[kMaxMaps];
  int maps, classes;
  int64_t rows, columns;
  bool softmax;
  DType dtype;  // of all maps
};

int launch_upsample_argmax(const ArgmaxMaps& p, int64_t* labels, void* stream);

}  // namespace mesa
