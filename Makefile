# make setup | demo | test | test-cuda | lint | clean
#
# FAMILY=openmmlab (default) or onedl: which MMSegmentation packages to install; they never share a virtual environment.
# TORCH=torch==2.13.0: the torch to install, any pip requirement; CPU and CUDA builds of 2.11 and later work.
# PYTHON=python3: the Python (3.10 or later) to make the virtual environment with.

FAMILY ?= openmmlab
TORCH ?= torch==2.13.0
PYTHON ?= python3
TESTS ?= tests --ignore=tests/cuda --ignore=tests/emu
PYTEST_ARGS ?=

ifeq ($(FAMILY),openmmlab)
VENV ?= .venv
else ifeq ($(FAMILY),onedl)
VENV ?= .venv-onedl
else
$(error FAMILY=$(FAMILY): expected openmmlab or onedl)
endif

RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
DEPENDENCIES := $(VENV)/.dependencies
BUILT := $(VENV)/.built
SOURCES := setup.py $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

.PHONY: setup demo test test-cuda lint clean
.DEFAULT_GOAL := setup

setup: $(BUILT)

# The requirements of extras of pyproject.toml, without the project itself.
define REQUIREMENTS
import sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open('pyproject.toml', 'rb') as file:
    extras = tomllib.load(file)['project']['optional-dependencies']
print('\n'.join(requirement for extra in sys.argv[1:] for requirement in extras[extra]))
endef
export REQUIREMENTS

# MMCV_WITH_OPS=0: onedl-mmcv comes as source, and none of its own operators is needed.
# opencv-python needs libGL, which servers and containers often lack; whatever pulled it in, the headless build replaces it.
$(DEPENDENCIES): Makefile pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo 'error: Python 3.10 or later is needed; name one by PYTHON=...' >&2; exit 1; }
	@command -v $(CXX) > /dev/null || { echo 'error: a C++ compiler is needed ($(CXX) was not found)' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet '$(TORCH)' numpy ninja wheel 'setuptools<81'
	@$(RUN) -c "$$REQUIREMENTS" $(FAMILY) test > $(VENV)/requirements.txt
	MMCV_WITH_OPS=0 $(PIP) install --quiet --no-build-isolation -r $(VENV)/requirements.txt
	$(PIP) uninstall --quiet --yes opencv-python
	$(PIP) install --quiet --force-reinstall --no-deps opencv-python-headless
	@touch $@

$(BUILT): $(DEPENDENCIES) $(SOURCES)
	$(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@$(RUN) -c 'import cv2'
	@$(RUN) -c "from mesa_seg import compat; print('mesa_seg is set up in $(VENV):', \
	  ', '.join(f'{name} {version}' for name, version in compat.installed(compat.find_family()).items()))"
	@touch $@

demo: setup
	$(RUN) tools/demo.py

test: setup
	$(RUN) -m pytest $(TESTS) $(PYTEST_ARGS)

# The CUDA kernels, run on the CPU by the emulator (tests/emu), under the address sanitiser where the compiler has one.
# The C++ library is preloaded too: the sanitiser looks for its exceptions when it starts.
test-cuda: setup
	$(RUN) -m pytest tests/emu $(PYTEST_ARGS)
	@asan=$$($(CXX) -print-file-name=libasan.so); case $$asan in \
	  /*) export MESA_EMU_SANITIZE=1 ASAN_OPTIONS=detect_leaks=0 \
	      LD_PRELOAD="$$asan $$($(CXX) -print-file-name=libstdc++.so)";; \
	  *) echo 'no address sanitiser: the kernels run without it';; esac; \
	  $(RUN) -m pytest tests/cuda $(PYTEST_ARGS)

lint: setup
	$(RUN) -m ruff check .

clean:
	rm -rf .venv .venv-onedl build dist mesa_seg.egg-info mesa_seg/*.so data/toy_ade20k work_dirs/demo \
	  .pytest_cache .ruff_cache
	find mesa_seg tests tools configs -name __pycache__ -type d -prune -exec rm -rf {} +
