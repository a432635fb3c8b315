#include "upsample_argmax.cuh"

namespace mesa {

int launch_upsample_argmax(const ArgmaxMaps& p, int64_t* labels, void* stream) {
  const dim3 grid(grid_for(p.rows * p.columns, kArgmaxThreads)), threads(kArgmaxThreads);
  MESA_DISPATCH(p.dtype, {
    if (p.maps == 1) {  // its softmax has its largest class where the map has it
      MESA_LAUNCH((upsample_argmax_kernel<scalar_t>), grid, threads, 0, stream, p.map[0], p.classes, p.rows, p.columns,
                  labels);
    } else {
      MESA_LAUNCH((upsample_argmax_sum_kernel<scalar_t>), grid, threads, 0, stream, p, labels);
    }
  })
  return (int)cudaGetLastError();
}

}  // namespace mesa
