# Each target does its own set-up, in .venv and build/, once.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Two test processes share the cores, so waiting threads must not spin
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2
# Builds by gcc share their objects where ccache is. Paths of the system's headers do not matter
CCACHE := $(shell command -v ccache)
export CCACHE_NOHASHDIR = 1
C_FILES := $(wildcard csrc/*/*.[ch] include/*.h)
LIB_FILES := include/rotrnn.h $(wildcard tests/*.c tests/lib/*.c tests/amx/*.[ch] tests/amx/plain/*.h examples/c/*.[ch])
HEADERS := $(wildcard csrc/include/*.h csrc/runtime/*.h csrc/kernels/*.h)
LIST := csrc/kernels.list csrc/generate.py
BASE ?= main
WARNINGS := -Wall -Wextra -Wconversion -Wpedantic -Werror
WHEEL := cli.py readme.py notebooks.py plots.py
SANITIZERS := -fsanitize=address,undefined,float-cast-overflow -fno-sanitize-recover=all -fno-omit-frame-pointer -g

# Runs Python with the module of build/sanitize. libstdc++ must be loaded with the sanitizer for matplotlib, whose C++
# throws. A larger allocation than 4 GB is refused, as on a machine without the memory.
SANITIZED = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
	PYTHONPATH=$(CURDIR)/build/sanitize/lib:$(CURDIR)/tests LSAN_OPTIONS=exitcode=0 UBSAN_OPTIONS=print_stacktrace=1 \
	ASAN_OPTIONS=detect_leaks=$(1):allocator_may_return_null=1:max_allocation_size_mb=4096$(2)

define SANITIZED_TESTS
	rm -f build/sanitize/report.*
	export LIBROTRNN=build/sanitize/librotrnn LIB_CFLAGS="-O1 $(SANITIZERS)"; \
	export $(call SANITIZED,1,:log_path=$(CURDIR)/build/sanitize/report); \
	$(PYTEST) -m 'not whole' -k 'not central_differences' $(1) || { grep -hE -A 20 'ERROR: Addr|runtime error|CHECK' build/sanitize/report.*; exit 1; }
	! grep csrc/ build/sanitize/report.*
endef

# make fuzz: how many calls, and the seed; make fuzz-c: seconds for each of its programs, whose seed 0 is the time's
CALLS ?= 50000
SEED ?= 0
TIME ?= 60
# make soak: minutes; SOAK='--kills 100' and no more is an hour
SOAK ?= --tokens 2000 --steps 20 --kills 1 --seconds 2
# clang also reports NULL + 0, as of an array that is None; the next C standard defines it
NULL_PLUS_0 := -fno-sanitize=pointer-overflow
FUZZ_C := clang -std=c11 -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all

# clang warns before it optimises; this build is not run, so the optimiser is left out
CLANG := clang -Xclang -disable-llvm-passes $(WARNINGS)

# What continuous integration runs (.ci/steps.toml): `make NAME` runs the rule step-NAME and, when it passes, records that
# in .ci/passed, so that it is not run again on the same inputs
RECORDED := lint-headers lint-clang lint-cuda docs examples test-rest harness sanitize-harness sanitize-ops sanitize-rest \
	races-kernels races-module races-harness fuzzers soak test-wheel test-arm test-data test-torch test-jax test-cupy test-hub cuda
ALWAYS := strict lint-source test test-bare
.PHONY: $(RECORDED) $(RECORDED:%=step-%) $(ALWAYS) $(ALWAYS:%=step-%)
$(RECORDED):
	@$(PYTHON) .ci/steps.py run $@
$(ALWAYS): %: step-%

.PHONY: lib install-lib help demo check resources traffic lint sanitize sanitized races stable build cross fuzz fuzz-c fuzz-files fuzz-lib oom planted bench bench-gpu gpu-kit release clean notebooks

help:
	@echo "to begin with:"
	@echo "  make demo        train RotRNN on digits and on short ListOps, and draw its pictures (minutes)"
	@echo "  make test        the test suite: every op, layer, model, task and the training loop (minutes)"
	@echo "  make test-rest   tests that drive whole programs: sweeps, launchers, benchmarks, notebooks, pictures (minutes)"
	@echo "before every commit, or pull request:"
	@echo "  make check       lint and quick tests of what differs from $(BASE): a minute"
	@echo "  make lint        ruff, mypy, clang-format, each header by itself, and builds by gcc and clang without a warning"
	@echo "  make docs        the documentation as a site, in build/docs/html, with warnings as errors and links checked"
	@echo "  make notebooks   run the notebooks of examples/ and store their outputs in them"
	@echo "  make stable      the tests in other orders, and under other loads, processors, locales, memory, users: hours; STABLE=options"
	@echo "where C code changed:"
	@echo "  make sanitize    the test suite, and some rows a CUDA kernel, under the address and undefined-behaviour sanitizers"
	@echo "  make races       C kernels, module and CUDA kernels under the thread sanitizer, by clang (minutes)"
	@echo "  make fuzz        CALLS=50000 random calls of everything public under these sanitizers, by SEED"
	@echo "  make fuzz-c      libFuzzer on the C parsers, and on the module's checks of arguments, TIME=60 seconds each"
	@echo "  make fuzz-lib    CALLS=50000 changed model files for the C library, under the sanitizers, by SEED"
	@echo "  make oom         calls of the C library and of the module where one allocation fails, each in turn"
	@echo "  make fuzz-files  changes files of every format at random and loads them (minutes)"
	@echo "  make planted     plants faults of known kinds one at a time: which test finds each; PLANTED=names or options"
	@echo "  make soak        long streams and training of every layer, kills, full disks, jumping clocks; SOAK='--kills 100' for an hour"
	@echo "the C library:"
	@echo "  make lib         the C library for inference, in build/lib; make install-lib PREFIX=/usr/local (docs/c.md)"
	@echo "  make examples    the programs in C and the page for browsers, in build/examples, and their tests (docs/c.md)"
	@echo "where CUDA code changed:"
	@echo "  make harness     the CUDA kernels in the harness on the host, under five orders of threads (tests/cuda)"
	@echo "  make resources   registers, spills and inner loops of the CUDA kernels, into benchmarks/results/; needs nvcc, nvdisasm"
	@echo "  make traffic     what a training step on a GPU moves and computes, counted in the harness (minutes)"
	@echo "  make cuda        build the CUDA kernels by nvcc, for the package in .venv (minutes)"
	@echo "  make bench-gpu   checks, timings and training on a GPU: STAGE=smoke, speed or sanitize, LIMIT=300 seconds"
	@echo "  make gpu-kit     the modules for a GPU's machine, built here by nvcc for Python 3.12 (PYTHON312) and Hopper"
	@echo "beside other packages:"
	@echo "  make test-data   Parquet files and the forecast of examples/forecasts, with pyarrow and statsmodels in build/data"
	@echo "  make test-torch  the modules of PyTorch (docs/pytorch.md), with PyTorch in build/torch; TORCH=torch==2.13.*"
	@echo "  make test-jax    the functions for JAX (docs/jax.md), with JAX in build/jax; JAX=jax==0.10.*"
	@echo "  make test-cupy   the stand-in for CuPy beside CuPy itself, in build/cupy, without a GPU"
	@echo "  make test-hub    published weights, ONNX and delta rules beside transformers, Flax, onnxruntime and fla, in build/hub"
	@echo "the wheel, and other machines:"
	@echo "  make build       sdist and wheel, in dist/"
	@echo "  make test-wheel  quick tests, commands and examples on that wheel, outside the source tree"
	@echo "  make test-bare   that wheel with nothing but its dependencies: import, layers, a training run, messages about extras"
	@echo "  make test-arm    the C kernels against plain loops, here and for aarch64 under qemu"
	@echo "  make cross       compiles the C files for macOS and Windows, by zig"
	@echo "  make release     sdist, wheel, their hashes and an SBOM, from pinned tools, in dist/"
	@echo "more:"
	@echo "  make bench       timings beside this machine's limits and beside peers, into docs/ and benchmarks/results/"
	@echo "  make clean       remove what these made, except .venv and runs/"

demo: .venv/installed
	@$(BIN)/python examples/demo.py

step-test: .venv/installed
	@$(PYTEST) --durations=20 --durations-min=1 -m 'not whole' --ignore tests/cuda

# Tests that drive whole programs. Those of tests/cuda are in the step harness
step-test-rest: .venv/installed
	@$(PYTEST) --durations=20 --durations-min=1 -m whole --ignore tests/cuda

step-docs: build/docs/venv/installed
	build/docs/venv/bin/python docs/site/make_site.py
	$(BIN)/python docs/site/look.py

# Sphinx and its like, beside the packages of .venv
build/docs/venv/installed: .venv/installed
	rm -rf build/docs/venv
	$(PYTHON) -m venv build/docs/venv
	echo "import site; site.addsitedir('$$($(CURDIR)/$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')')" \
		> "$$(build/docs/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/rotrnn.pth"
	build/docs/venv/bin/pip install --quiet --disable-pip-version-check \
		$$($(BIN)/python -c 'import tomllib as t; p = t.load(open("pyproject.toml", "rb"))["project"]; \
			print(*p["optional-dependencies"]["docs"])')
	@touch $@

notebooks: .venv/installed build/torch/installed
	$(BIN)/python examples/notebooks.py
	PYTHONPATH="$(CURDIR)/build/torch" $(BIN)/python examples/notebooks.py pytorch/torch_loop

# PyTorch is large, so its tests are left out of `make test`. It is put beside the packages of .venv; where a smaller
# build for the CPU alone is, PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL tells
TORCH ?= torch==2.13.*
step-test-torch: .venv/installed build/torch/installed
	PYTHONPATH="$(CURDIR)/build/torch" $(PYTEST) tests/pytorch

build/torch/installed: | .venv/bin/python
	@echo "installing PyTorch into build/torch"
	@$(PIP) --upgrade --target build/torch '$(TORCH)'
	@touch $@

# JAX is large, so its tests are left out of `make test`. It is put beside the packages of .venv
JAX ?= jax
step-test-jax: .venv/installed build/jax/installed
	PYTHONPATH="$(CURDIR)/build/jax" $(PYTEST) tests/with_jax

build/jax/installed: | .venv/bin/python
	@echo "installing JAX into build/jax"
	@$(PIP) --upgrade --target build/jax '$(JAX)'
	@touch $@

# CuPy can be imported without a GPU and without CUDA. It is large, so this test is left out of `make test`
CUPY ?= cupy-cuda13x>=14
step-test-cupy: .venv/installed build/cupy/installed
	PYTHONPATH="$(CURDIR)/build/cupy" $(PYTEST) tests/cuda/test_real_cupy.py

build/cupy/installed: | .venv/bin/python
	@echo "installing CuPy into build/cupy"
	@$(PIP) --upgrade --no-deps --target build/cupy '$(CUPY)' cuda-pathfinder
	@touch $@

# What reads Parquet, and a notebook on a series of statsmodels. These packages are large, so they are put beside those
# of .venv, which has what they depend on
step-test-data: .venv/installed build/data/installed
	PYTHONPATH="$(CURDIR)/build/data" $(PYTEST) tests/with_pandas

build/data/installed: | .venv/bin/python
	@echo "installing pyarrow, pandas, polars and statsmodels into build/data"
	@$(PIP) --upgrade --no-deps --target build/data pyarrow pandas polars polars-runtime-32 statsmodels patsy pytz tzdata
	@touch $@

step-cuda: .venv/installed
	ROTRNN_CUDA=1 $(BIN)/python setup.py -q build_ext --inplace --build-temp build/inplace
	$(BIN)/python -c 'from rotrnn import _cuda'

# Every row of the table of cases, and all that tests/cuda has besides, under five orders of threads
step-harness: .venv/installed
	HARNESS_SEEDS="1 2 3 4 5" $(PYTEST) tests/cuda

lib install-lib:
	@$(MAKE) -f csrc/lib/Makefile $@

# The tests would leave out what they do not find
step-examples: .venv/installed
	@for tool in clang wasm-ld llvm-ar $${CHROMIUM:-chromium}; do command -v $$tool > /dev/null || { \
		echo "make examples needs $$tool; Debian: clang lld llvm wasi-libc libclang-rt-dev-wasm32 chromium" >&2; exit 1; }; done
	@$(MAKE) -s -f examples/c/Makefile programs page
	@$(PYTEST) tests/lib/test_examples_in_c.py tests/lib/test_digits_page.py

# Beside other people's models and programs, which are large: in a venv that adds them to .venv, to PyTorch and to JAX.
# pip finds what is in these three, and does not install it again
step-test-hub: build/hub/installed
	OMP_WAIT_POLICY=passive build/hub/bin/python -m pytest -n 2 tests/hub

build/hub/installed: tests/hub/requirements.txt build/torch/installed build/jax/installed | .venv/installed
	rm -rf build/hub
	$(PYTHON) -m venv build/hub
	for folder in "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')" $(CURDIR)/build/torch $(CURDIR)/build/jax; do \
		echo "import site; site.addsitedir('$$folder')"; \
	done > "$$(build/hub/bin/python -c 'import site; print(site.getsitepackages()[0])')/rotrnn.pth"
	build/hub/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

resources: .venv/installed .venv/nvdisasm
	@$(BIN)/python tests/cuda/resources.py
step-lint-cuda: .venv/installed .venv/nvdisasm
	$(BIN)/python tests/cuda/resources.py --check

# CUDA's own, or the one of PyPI
.venv/nvdisasm: | .venv/bin/python
	@command -v nvdisasm >/dev/null || $(PIP) 'nvidia-cuda-nvdisasm==13.*'
	@touch $@

traffic: .venv/installed
	PYTHONPATH=tests:. $(BIN)/python tests/traffic_table.py

# mypy and the other linters run at the same time, on a core each
check: .venv/linters
	@base=$$(git merge-base HEAD $(BASE) 2> /dev/null || echo HEAD); \
	changed=$$(git diff --name-only --diff-filter=d "$$base"; git ls-files --others --exclude-standard); \
	python=$$(echo "$$changed" | grep -E '\.(py|pyi|ipynb)$$' || true); \
	c=$$(echo "$$changed" | grep -E '^csrc/.*\.[ch]$$' || true); \
	$(BIN)/mypy & types=$$!; \
	{ test -z "$$python" || { $(BIN)/ruff check --force-exclude $$python && \
		$(BIN)/ruff format --check --force-exclude $$python; }; } && \
	{ test -z "$$c" || clang-format --dry-run -Werror $$c; }; text=$$?; \
	$(PYTHON) tests/related.py $$changed | { passed=0; while read -r call; do \
		eval "$(PYTEST) -m 'not slow and not whole' $$call"; code=$$?; \
		test $$code = 5 || test $$code = 0 || passed=1; done; exit $$passed; }; passed=$$?; \
	wait $$types && test $$text = 0 && exit $$passed

lint: lint-source lint-headers strict lint-clang

step-lint-source: .venv/linters
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	printf '%s\n' linux darwin win32 | xargs -P 2 -I {} $(BIN)/mypy --platform {} --cache-dir .mypy_cache/{}
	$(BIN)/python -m pytest tests/package/test_types.py
	@clang-format --dry-run -Werror $(C_FILES) $(LIB_FILES)

step-lint-clang: .venv/installed
	CC="$(CLANG)" $(BIN)/python setup.py -q build --build-base build/lint-clang
	$(MAKE) -s -f csrc/lib/Makefile lib CC=clang LIB_BUILD=build/lint-clang/lib LIB_CFLAGS="$(WARNINGS)"
	$(MAKE) -s -f examples/c/Makefile programs CC=clang EXAMPLES=build/lint-clang/examples LIB_CFLAGS="$(WARNINGS)"

# Installs a build by gcc with warnings as errors, which the tests run. Theirs of the C library has no other options, so
# they do not build it again
step-strict:
	rm -f .venv/installed
	CC="$(CCACHE) gcc $(WARNINGS)" $(MAKE) .venv/installed
	$(MAKE) -s -f csrc/lib/Makefile lib LIB_WARNINGS="$(WARNINGS)"

# Compiles each header by itself, as C11 and as C++17, since other backends include them
step-lint-headers:
	@$(PYTHON) csrc/generate.py build/lint-headers
	@for header in kernels.h $(notdir $(HEADERS)); do for dtype in f32 f64; do for language in 'gcc -std=c11 -x c' 'g++ -std=c++17 -x c++'; do \
		echo "#include \"$$header\"" | $$language $(WARNINGS) -fopenmp -fsyntax-only -D_DEFAULT_SOURCE -DROT_DTYPE=$$dtype -Ibuild/lint-headers \
		-Icsrc/include -Icsrc/runtime -Icsrc/kernels - || { echo "$$header does not compile alone: $$language, $$dtype"; exit 1; }; \
	done; done; done

# Python itself leaks at exit, so only leaks through our C files count. Tests of whole programs and central differences
# are left out: their C code runs in other tests. The CUDA kernels run in the harness, three rows of the table for each.
sanitize: sanitize-harness sanitize-ops sanitize-rest

step-sanitize-harness: sanitized
	export $(call SANITIZED,0) HARNESS=build/harness-sanitize HARNESS_CASES=3 CC="gcc $(SANITIZERS)" CXX="g++ $(SANITIZERS)"; \
	$(PYTEST) tests/cuda -m 'not whole'

step-sanitize-ops: sanitized
	$(call SANITIZED_TESTS,tests/ops tests/nn)

step-sanitize-rest: sanitized
	$(call SANITIZED_TESTS,--ignore tests/cuda --ignore tests/ops --ignore tests/nn)

# gcc's OpenMP does not tell the sanitizer of its barriers; clang's does. Debian: clang, libomp-dev
races: races-kernels races-module races-harness

step-races-kernels step-races-module step-races-harness: step-races-%: .venv/installed
	$(BIN)/python tests/c/races.py $*

# STABLE='--rounds 3 --runs busy,narrow tests/training'; Pythons 3.11 to 3.13 are looked for on PATH
stable: .venv/installed
	$(BIN)/python tests/stable.py $(STABLE)

step-soak: .venv/installed
	OMP_WAIT_POLICY=passive $(BIN)/python -m tests.soak $(SOAK)

# PLANTED="--all window_age": see python -m tests.planted --help
planted: .venv/installed
	$(BIN)/python -m tests.planted $(PLANTED)

# The module with sanitizers, in build/sanitize/lib, for the instruction sets that this processor has
sanitized: .venv/installed
	rm -rf build/sanitize/lib
	ROTRNN_ISA="$$($(BIN)/python -c 'from rotrnn import _cpu; print(_cpu.SIMD_AVAILABLE[-1])')" CC="gcc $(SANITIZERS)" $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib build/sanitize/lib
	$(call SANITIZED,0) $(BIN)/python -c 'import rotrnn._cpu as m; assert "sanitize" in m.__file__, m.__file__'

# Each fuzzer for some ten seconds, so that none can rot; by one seed, so that the gate does not fail by chance
step-fuzzers:
	$(MAKE) fuzz CALLS=1000 SEED=1
	$(MAKE) fuzz-c TIME=10 SEED=1
	$(MAKE) fuzz-lib CALLS=1000 SEED=1
	$(MAKE) fuzz-files FUZZ='--count 100 --seed 1'

fuzz: sanitized
	$(call SANITIZED,0) OMP_WAIT_POLICY=passive $(BIN)/python -m fuzz.calls --count $(CALLS) --seed $(SEED)

# Debian: clang, libomp-dev. What libFuzzer found interesting is kept, and the next run begins with it.
fuzz-c: build/fuzz/parsers build/fuzz/programs build/fuzz/door
	mkdir -p build/fuzz/corpus/parsers build/fuzz/corpus/programs build/fuzz/corpus/door
	printf '\0( ( ( ( [MAX 3 ) ( ( ( [MIN 1 ) 2 ) ] ) ) 4 ) ] )' > build/fuzz/corpus/parsers/expression
	cd build/fuzz && ./parsers -max_total_time=$(TIME) -seed=$(SEED) -timeout=30 -print_final_stats=1 corpus/parsers
	cd build/fuzz && ./programs -max_total_time=$(TIME) -seed=$(SEED) -timeout=30 -print_final_stats=1 corpus/programs
	cd build/fuzz && PYTHONHOME=$$($(CURDIR)/$(BIN)/python -c 'import sys; print(sys.base_prefix)') \
		PYTHONPATH=lib:$(CURDIR)/tests:$$($(CURDIR)/$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))') \
		ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
		./door -max_total_time=$(TIME) -seed=$(SEED) -timeout=30 -print_final_stats=1 corpus/door

# Each allocation of the C library, and of the module's calls, fails in turn; `make test` runs it, too
oom: .venv/installed
	@$(PYTEST) tests/lib/test_lib.py tests/package/test_checks.py -k whichever_allocation_fails

# Changed model files for the C library, under the sanitizers
fuzz-lib: .venv/installed
	export LIBROTRNN=build/sanitize/librotrnn LIB_CFLAGS="-O1 $(SANITIZERS)"; \
	$(call SANITIZED,0) PYTHONPATH=python:tests:. $(BIN)/python -m tests.lib.model_files --count $(CALLS) --seed $(SEED)

build/fuzz/parsers: tests/fuzz/parsers.c $(wildcard csrc/data/*.c) $(HEADERS) $(LIST)
	$(PYTHON) csrc/generate.py build/fuzz
	$(FUZZ_C) -fsanitize=fuzzer,address,undefined,float-cast-overflow,implicit-conversion $(NULL_PLUS_0) \
		-Ibuild/fuzz -Icsrc/include -Icsrc/runtime -Icsrc/kernels -o $@ $< $(wildcard csrc/data/*.c) csrc/runtime/pool.c -lm -lpthread

build/fuzz/programs: tests/fuzz/programs.c $(wildcard csrc/lib/*.[ch]) $(HEADERS)
	$(MAKE) -s -f csrc/lib/Makefile build/fuzz/librotrnn/librotrnn.a LIB_BUILD=build/fuzz/librotrnn LIB_ISA=base \
		CC="$(FUZZ_C)" LIB_CFLAGS="-fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow $(NULL_PLUS_0)"
	$(FUZZ_C) -fsanitize=fuzzer,address,undefined,float-cast-overflow $(NULL_PLUS_0) -include csrc/lib/names.h -Iinclude -Icsrc/include \
		-Icsrc/runtime -Icsrc/kernels -Icsrc/lib -Ibuild/fuzz/librotrnn -o $@ $< build/fuzz/librotrnn/librotrnn.a -lm

# The module with the plainest instruction set alone, as for a processor that setup.py does not know
build/fuzz/door: tests/fuzz/door.c .venv/installed
	_PYTHON_HOST_PLATFORM=linux-any \
		CC="$(FUZZ_C) -fsanitize=fuzzer-no-link,address,undefined,float-cast-overflow $(NULL_PLUS_0)" \
		$(BIN)/python setup.py -q build --build-base build/fuzz/module --build-lib build/fuzz/lib
	$(FUZZ_C) -fsanitize=fuzzer,address,undefined -rdynamic -o $@ $< $$($(BIN)/python -c 'import sysconfig as s; \
		lib = s.get_config_var("LIBDIR"); print("-I" + s.get_path("include"), "-L" + lib, "-Wl,-rpath," + lib, \
		"-lpython" + s.get_config_var("LDVERSION"))')

build: .venv/installed
	rm -rf dist
	$(BIN)/python -m build --outdir dist

# The options of step-strict, so that its objects serve
step-test-wheel step-test-bare: export CC = $(CCACHE) gcc $(WARNINGS)

# `make test` tests the kernels, by half of the quick tests (tests/ops/test_cases.py); this tests that the wheel is
# complete and works without the sources, of which the harness is built
step-test-wheel: build build/wheel/venv/installed
	rm -rf build/wheel/tree
	mkdir build/wheel/tree
	cp -r tests examples benchmarks docs *.md pyproject.toml build/wheel/tree
	build/wheel/venv/bin/pip uninstall --quiet --yes rotrnn
	build/wheel/venv/bin/pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[plot,data,test]"
	cd build/wheel/tree && OMP_WAIT_POLICY=passive ../venv/bin/python -m pytest -n 2 -m 'not slow and not whole' --ignore tests/cuda --ignore tests/ops/test_cases.py
	cd build/wheel/tree && OMP_WAIT_POLICY=passive ../venv/bin/python -m pytest -n 2 $(addprefix tests/package/test_,$(WHEEL))

# The packages of the wheel's tests, in the versions of .venv. Takes one core, so CI runs it along with lint-source
build/wheel/venv/installed: .venv/linters
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel/venv
	$(BIN)/pip freeze --exclude-editable > build/wheel/requirements.txt
	build/wheel/venv/bin/pip install --quiet --disable-pip-version-check -r build/wheel/requirements.txt
	@touch $@

step-test-bare: build
	rm -rf build/bare
	$(BIN)/python -m venv build/bare
	build/bare/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	cd build/bare && bin/python -I $(CURDIR)/tests/bare.py

# Debian: gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
step-test-arm: .venv/installed
	$(BIN)/python tests/c/cross.py linux-x86_64 linux-aarch64

cross: .venv/zig
	$(BIN)/python tests/c/cross.py macosx-11.0-arm64 macosx-11.0-x86_64 win-amd64

# FUZZ='--count 100000 --seed 1 --format recipe': see python -m tests.fuzz.files --help
fuzz-files: .venv/installed
	$(BIN)/python -m tests.fuzz.files $(FUZZ)

bench: .venv/installed
	$(BIN)/python -m benchmarks

# STAGE=smoke, speed or sanitize: see benchmarks/gpu.sh
bench-gpu: .venv/installed
	@PYTHON=$(BIN)/python benchmarks/gpu.sh $(or $(STAGE),smoke) $(or $(LIMIT),300)

gpu-kit:
	@benchmarks/gpu.sh kit

# Twice, to see that the wheel's bytes depend on the sources alone
# With the CUDA kernels where nvcc is
release: export ROTRNN_CUDA = 1
release:
	$(PYTHON) .ci/steps.py due --strict
	rm -rf dist build/release
	$(PYTHON) -m venv build/release/tools
	build/release/tools/bin/pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r build-requirements.txt
	for folder in dist build/release/again; do SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
		build/release/tools/bin/python -m build --no-isolation --outdir $$folder || exit 1; done
	cmp dist/*.whl build/release/again/*.whl
	$(PYTHON) -m venv --without-pip build/release/bare
	build/release/tools/bin/pip --python build/release/bare install --quiet --disable-pip-version-check dist/*.whl
	build/release/tools/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml -o dist/rotrnn.cdx.json build/release/bare
	cd dist && sha256sum * > SHA256SUMS && cat SHA256SUMS

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis python/*.egg-info python/rotrnn/*.so
	rm -f .venv/installed

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("rotrnn needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv .venv

# Editable: reinstalled only when C code or the packaging changes.
.venv/installed: pyproject.toml setup.py $(C_FILES) $(LIST) | .venv/bin/python
	@echo "compiling rotrnn and installing it into .venv: minutes, or one with ccache"
	@touch .venv/begun
	@$(PIP) 'setuptools>=77' --editable '.[plot,data,test]'
	@mv .venv/begun $@

.venv/zig: .venv/installed
	@$(PIP) ziglang
	@touch $@

.venv/linters: .venv/installed
	@$(PIP) ruff mypy
	@touch $@
