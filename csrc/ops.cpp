// The module _C: it holds no Python function; loading it registers the CPU kernels of csrc/cpu with the operators
// that mesa_seg/ops defines.
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&definition); }
