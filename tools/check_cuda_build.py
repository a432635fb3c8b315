"""Compiles and links the CUDA operators on a machine without a GPU and checks what can be checked there.

    python tools/check_cuda_build.py [--archs "80;90"] [--table]

It builds ``mesa_seg._C_cuda`` (also against a CPU build of torch), then fails, saying what is wrong, when

* a kernel spills registers (from the report of ptxas);
* the module needs a symbol that neither torch nor the system has, apart from the few that torch's CUDA build adds;
* the module does not load, or an operator of ``torch.ops.mesa_seg`` has no CUDA kernel in it.

Without an nvcc it says so and ends with success. Needs a C compiler and ``nm``.
"""
import argparse
import ctypes
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What the module takes from torch's CUDA libraries, which a CPU build of torch does not have.
FROM_TORCH_CUDA = {'aoti_torch_get_current_cuda_stream'}


def parse_ptxas(text):
    """The report of ``nvcc -Xptxas -v``: one dict a kernel and architecture."""
    kernels = []
    pattern = r"Compiling entry function '(\w+)' for '(sm_\w+)'(.*?)(?=ptxas info\s+: Compiling|\Z)"
    for name, arch, body in re.findall(pattern, text, re.S):
        def number(pattern, body=body):
            found = re.search(pattern, body)
            return int(found[1]) if found else 0
        kernels.append(dict(
            kernel=name, arch=arch, registers=number(r'Used (\d+) registers'), shared=number(r'(\d+) bytes smem'),
            stack=number(r'(\d+) bytes stack frame'),
            spills=number(r'(\d+) bytes spill stores') + number(r'(\d+) bytes spill loads')))
    return kernels


def demangle(names):
    if not names or not shutil.which('c++filt'):
        return list(names)
    out = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True).stdout
    short = []
    for line in out.splitlines():
        line = line.removeprefix('void ').replace('mesa::', '').replace('(anonymous namespace)::', '')
        depth = 0
        for i, c in enumerate(line):  # cut the arguments: the first parenthesis outside <>
            depth += (c == '<') - (c == '>')
            if c == '(' and depth == 0:
                line = line[:i]
                break
        short.append(line.replace('__nv_bfloat16', 'bf16').replace('__half', 'f16').replace('float', 'f32'))
    return short


def read_reports(folder):
    """Every kernel of every log that the build left; raises where there is no log."""
    logs = sorted(folder.glob('*.ptxas.log'))
    if not logs:
        raise SystemExit(f'no report of ptxas in {folder}')
    kernels = []
    for log in logs:
        found = parse_ptxas(log.read_text())
        for k in found:
            k['family'] = log.name.split('.')[0]
        kernels += found
    for k, name in zip(kernels, demangle([k['kernel'] for k in kernels]), strict=True):
        k['name'] = name
    return kernels


# Of a multiprocessor: threads, bytes of shared memory, blocks. Registers are 64 K everywhere.
LIMITS = {'sm_75': (1024, 64, 16), 'sm_80': (2048, 164, 32), 'sm_86': (1536, 100, 16), 'sm_89': (1536, 100, 24),
          'sm_90': (2048, 228, 32), 'sm_100': (2048, 228, 32), 'sm_120': (1536, 100, 24)}


def occupancy(arch, registers, shared, threads):
    """Threads that a multiprocessor runs at once, as a share of what it can hold; None for an unknown ``arch``."""
    if arch not in LIMITS:
        return None
    most, kib, blocks = LIMITS[arch]
    per_warp = -(-registers * 32 // 256) * 256
    blocks = min(blocks, 65536 // (per_warp * (threads // 32)), most // threads)
    if shared:
        blocks = min(blocks, kib * 1024 // (-(-shared // 128) * 128 + 1024))
    return blocks * threads / most


def block_sizes():
    """Most threads of a block of each kernel, as its ``__launch_bounds__`` in the sources has it.

    0: its template says; a pair: with the last parameter of the template true, and false.
    """
    source = '\n'.join(path.read_text() for path in sorted((ROOT / 'csrc' / 'cuda').glob('*.cu*')))
    constants = {}
    for statement in re.findall(r'constexpr int (k\w+ = [^;?]+);', source):
        for part in statement.split(','):
            name, _, value = part.partition('=')
            constants.setdefault(name.strip(), value.strip())

    def evaluate(text):
        if '?' in text:
            return tuple(map(evaluate, re.split('[?:]', text)[1:]))
        known = re.sub(r'k[A-Z]\w*', lambda m: f'({evaluate(constants[m[0]])})' if m[0] in constants else m[0], text)
        return eval(known, {'__builtins__': {}}) if re.fullmatch(r'[\d\s+*/()-]+', known) else 0

    found = re.findall(r'__launch_bounds__\(([^,()]+)[^;{]*?\)\s+(\w+_kernel)\(', source)
    return {name: evaluate(text) for text, name in found}


def threads_of(kernel, sizes):
    """Most threads of a block of a kernel of :func:`read_reports`."""
    tiles = re.search(r'MmaTiles<(\d+), (\d+), \d+>', kernel['name'])  # csrc/cuda/window_attention_mma.cuh
    if tiles:
        return 32 * ((int(tiles[1]) * int(tiles[2]) + 1) // 2)
    size = sizes.get(kernel['name'].split('<')[0]) or 0
    return size['false>' in kernel['name']] if isinstance(size, tuple) else size


def print_table(kernels):
    """One line a kernel and architecture: the most of any of its instances; dynamic shared memory is not counted."""
    sizes, groups = block_sizes(), {}
    for k in kernels:
        groups.setdefault((k['family'], k['name'].split('<')[0], k['arch']), []).append(k)
    print('| kernel | architecture | instances | threads | registers | static shared, B | spills, B | occupancy |\n'
          '|---|---|---|---|---|---|---|---|')
    for (_, name, arch), group in sorted(groups.items()):
        threads = max(threads_of(k, sizes) for k in group)
        shares = [occupancy(arch, k['registers'], k['shared'], threads_of(k, sizes)) for k in group] if threads else []
        share = ' to '.join(sorted({f'{s:.0%}' for s in (min(shares), max(shares))}, key=lambda t: int(t[:-1]))) \
            if shares and None not in shares else ''
        low, high = min(k['registers'] for k in group), max(k['registers'] for k in group)
        print(f"| {name} | {arch} | {len(group)} | {threads or ''} | {low if low == high else f'{low} to {high}'} | "
              f"{max(k['shared'] for k in group)} | {sum(k['spills'] for k in group)} | {share} |")


def build(archs):
    env = {**os.environ, 'MESA_SEG_CUDA': '1'}
    if archs:
        env['MESA_SEG_CUDA_ARCHS'] = archs
    out = ROOT / 'build' / 'check_cuda'
    done = subprocess.run([sys.executable, 'setup.py', '-q', 'build_ext', '--build-lib', str(out)], cwd=ROOT, env=env,
                          capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'the build failed:\n{(done.stdout + done.stderr)[-6000:]}')
    modules = list(out.glob('mesa_seg/_C_cuda*.so'))
    if len(modules) != 1:
        raise SystemExit(f'expected one module _C_cuda in {out}/mesa_seg, found {len(modules)}')
    return modules[0]


def symbols(path, *options):
    out = subprocess.run(['nm', '-D', *options, str(path)], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1].split('@')[0] for line in out.splitlines() if line.strip()}


def unknown_symbols(module):
    """Undefined symbols of the module that nothing it will be loaded with provides."""
    import torch
    needed = {line.split()[-1].split('@')[0]
              for line in subprocess.run(['nm', '-D', '--undefined-only', str(module)], capture_output=True, text=True,
                                         check=True).stdout.splitlines() if ' U ' in line}
    library = Path(torch.__file__).parent / 'lib'
    for path in library.glob('lib*.so*'):
        if path.name.startswith(('libtorch', 'libc10')):
            needed -= symbols(path, '--defined-only')
    python = ctypes.PyDLL(None)
    system = [ctypes.CDLL(name) for name in ('libc.so.6', 'libm.so.6', 'libstdc++.so.6', 'libgcc_s.so.1')]
    return {s for s in needed if not any(hasattr(lib, s) for lib in (python, *system))}


LOADER = """
import ctypes, importlib.util, sys
ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
import torch
sys.path.insert(0, sys.argv[3])
import warnings; warnings.simplefilter('ignore')
import mesa_seg.ops
spec = importlib.util.spec_from_file_location('mesa_seg._C_cuda', sys.argv[2])
spec.loader.exec_module(importlib.util.module_from_spec(spec))
names = sorted({s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith('mesa_seg::')})
missing = [n for n in names if not torch._C._dispatch_has_kernel_for_dispatch_key(n, 'CUDA')]
print(len(names), *missing)
"""


def load(module):
    """Load the module beside a stand-in for torch's CUDA symbols; returns the operators without a CUDA kernel."""
    with tempfile.TemporaryDirectory() as folder:
        source, stand_in = Path(folder, 's.c'), Path(folder, 'libstand_in.so')
        source.write_text(''.join(f'int {name}(void) {{ return 1; }}\n' for name in sorted(FROM_TORCH_CUDA)))
        compiler = os.environ.get('CC') or shutil.which('gcc') or 'cc'
        subprocess.run([compiler, '-shared', '-fPIC', str(source), '-o', str(stand_in)], check=True)
        done = subprocess.run([sys.executable, '-c', LOADER, str(stand_in), str(module), str(ROOT)],
                              capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'the module does not load:\n{done.stderr[-3000:]}')
    count, *missing = done.stdout.split()
    return int(count), missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--archs', help='compute capabilities, ; between them (default: all that setup.py names)')
    parser.add_argument('--table', action='store_true', help='print registers, shared memory and occupancy of every kernel')
    args = parser.parse_args()
    if not (os.environ.get('CUDA_HOME') or shutil.which('nvcc')):
        print('CUDA build: no nvcc on this machine, nothing was checked')
        return 0
    module = build(args.archs)
    kernels = read_reports(ROOT / 'build' / 'cuda')
    if args.table:
        print_table(kernels)
    problems = [f"{k['name']} spills {k['spills']} bytes on {k['arch']} ({k['family']}.cu)" for k in kernels if k['spills']]
    problems += [f'unknown symbol {s}' for s in sorted(unknown_symbols(module) - FROM_TORCH_CUDA)]
    count, missing = load(module)
    problems += [f'{name} has no CUDA kernel' for name in missing]
    archs = sorted({k['arch'] for k in kernels})
    print(f'CUDA build: {len({k["name"] for k in kernels})} kernels for {", ".join(archs)}; at most '
          f'{max(k["registers"] for k in kernels)} registers; {count - len(missing)} of {count} operators; '
          f'{len(problems)} problems')
    for problem in problems:
        print(f'  {problem}')
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
