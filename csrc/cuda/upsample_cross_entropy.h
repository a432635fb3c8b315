#pragma once
#include "../common/upsample.h"
#include "launch.h"
namespace mesa {

enum class LabelType : int { i64, i32, i16, u8 };

// Everything is contiguous. Null where not wanted or not given: weight, class_weight, loss, grad.
struct CrossEntropy {
  const void* logits;         // [batch, classes, rows.in, columns.in]
  DType dtype;
  const void* labels;         // [batch, rows.out, columns.out]
  LabelType label_type;
  const float* weight;        // as labels
  const float* class_weight;  // [classes]
  int64_t ignore_index;
  int batch, classes;
  Axis rows, columns;
  float* loss;                // as labels
  float* grad;                // as logits, float32
  double* sums;               // [batch, 5]
  // Scratch: log of the sum of exponentials and factor of each pixel (2 x labels, where grad is wanted), and the blocks'
  // sums.
  float *log_sum, *factor;
  double* partial;            // [batch, cross_entropy_blocks(), 5]
};

// How many classes the sources of a row segment are held of at a time, and how many columns they have at most.
struct PixelStage {
  int columns, chunk;
};

// Tiles of the gradient: along the classes, columns and rows of an image; and all of them.
struct GradientTiles {
  int classes, columns, rows, count;
};

int64_t cross_entropy_blocks(const CrossEntropy& p);  // of one image
int launch_upsample_cross_entropy(const CrossEntropy& p, void* stream);

}  // namespace mesa
