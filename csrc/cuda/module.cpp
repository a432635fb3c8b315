// The module _C_cuda: it holds no Python function; loading it registers the CUDA kernels with the operators that
// mesa_seg/ops defines.
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C_cuda", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__C_cuda(void) { return PyModule_Create(&definition); }
