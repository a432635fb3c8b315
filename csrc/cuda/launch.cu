#include "device.cuh"
namespace mesa {
#if defined(MESA_EMU)
const char* error_text(int) { return emu::last_error().c_str(); }
#else
const char* error_text(int error) { return cudaGetErrorString((cudaError_t)error); }
#endif
}  // namespace mesa
