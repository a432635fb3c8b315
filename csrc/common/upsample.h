#pragma once
// Where a bilinearly resized map takes its values from: torch.nn.functional.interpolate's own index arithmetic. torch's
// kernels compute the position in float32 with a fused multiply-add; on the host float64 holds that product exactly, so that
// one rounding at the end gives the same float32 without relying on the compiler or the processor.
#include <stdint.h>
#include "host_device.h"
namespace mesa {

struct Tap {
  int32_t first;       // the other source is first + 1, or first again at the end of the axis
  float lower, upper;  // weights of the two
};

// Source positions are scale * (i + offset) - offset, offset 0.5 without align_corners.
struct Axis {
  int64_t in, out;
  float scale;
  bool align_corners;
};
MESA_HD Axis make_axis(int64_t in, int64_t out, bool align_corners) {
  Axis a;
  a.in = in;
  a.out = out;
  a.align_corners = align_corners;
  if (align_corners)
    a.scale = out > 1 ? (float)(in - 1) / (float)(out - 1) : 0.0f;
  else
    a.scale = (float)in / (float)out;
  return a;
}

MESA_HD Tap source_tap(Axis a, int64_t i) {
  float source;
  if (a.in == a.out)
    source = (float)i;
  else if (a.align_corners)
    source = a.scale * (float)i;
  else
#if defined(__CUDA_ARCH__)
    source = fmaf(a.scale, (float)i + 0.5f, -0.5f);
#else
    source = (float)((double)a.scale * ((double)i + 0.5) - 0.5);
#endif
  source = source > 0.0f ? source : 0.0f;
  Tap t;
  t.first = (int32_t)source < a.in - 1 ? (int32_t)source : (int32_t)(a.in - 1);
  const float upper = source - (float)t.first;
  t.upper = upper < 1.0f ? upper : 1.0f;
  t.lower = 1.0f - t.upper;
  return t;
}

}  // namespace mesa
