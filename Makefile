# Each target does its own set-up, in .venv and build/; the second time that takes no time.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
# Two processes share the cores, so waiting threads must not spin
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n 2
C_FILES := $(wildcard csrc/*/*.[ch])
HEADERS := $(wildcard csrc/include/*.h csrc/kernels/*.h)
WARNINGS := -Wall -Wextra -Wconversion -Wpedantic -Werror
SANITIZERS := -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g

.PHONY: help demo test lint lint-headers sanitize build test-wheel bench clean

help:
	@echo "make demo        train RotRNN on digits and on short ListOps, and draw its pictures (minutes)"
	@echo "make test        the test suite"
	@echo "make lint        ruff, mypy, clang-format, headers alone, and builds by gcc and clang without a warning"
	@echo "make sanitize    the test suite under the address and undefined-behaviour sanitizers"
	@echo "make build       sdist and wheel, in dist/"
	@echo "make test-wheel  the test suite on that wheel, outside the source tree"
	@echo "make bench       timings beside this machine's limits and beside peers, into README.md and benchmarks/results/"
	@echo "make clean       remove what these made, less .venv and runs/"

demo: .venv/installed
	@$(BIN)/python examples/demo.py

test: .venv/installed
	@$(PYTEST)

lint: .venv/linters lint-headers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	clang-format --dry-run -Werror $(C_FILES)
	CC="gcc $(WARNINGS)" $(BIN)/python setup.py -q build --build-base build/lint-gcc
	CC="clang $(WARNINGS)" $(BIN)/python setup.py -q build --build-base build/lint-clang

# Each header alone, as C11 and as C++17, since other backends include them.
lint-headers:
	@for header in $(notdir $(HEADERS)); do for dtype in f32 f64; do for language in 'gcc -std=c11 -x c' 'g++ -std=c++17 -x c++'; do \
		echo "#include \"$$header\"" | $$language $(WARNINGS) -fopenmp -fsyntax-only -DROT_DTYPE=$$dtype -Icsrc/include -Icsrc/kernels - \
		|| { echo "$$header does not compile alone: $$language, $$dtype"; exit 1; }; \
	done; done; done

# Python leaks on its own account at exit, so of the leaks only those through our C files count. libstdc++ must be there
# before the sanitizer for matplotlib, whose C++ throws.
sanitize: .venv/installed
	rm -rf build/sanitize
	CC="gcc $(SANITIZERS)" $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib build/sanitize/lib
	export LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so.6)" \
		PYTHONPATH=build/sanitize/lib LSAN_OPTIONS=exitcode=0 \
		ASAN_OPTIONS=detect_leaks=1:log_path=$(CURDIR)/build/sanitize/report; \
	$(BIN)/python -c 'import rotrnn._cpu as m; assert "sanitize" in m.__file__, m.__file__' && \
	$(PYTEST) -m 'not notebooks' || { grep -hE -A 20 'ERROR: Addr|runtime error|CHECK' build/sanitize/report.*; exit 1; }
	! grep csrc/ build/sanitize/report.*

build: .venv/installed
	rm -rf dist
	$(BIN)/python -m build --outdir dist

test-wheel: build
	rm -rf build/wheel
	$(BIN)/python -m venv build/wheel/venv
	cp -r tests examples benchmarks README.md pyproject.toml build/wheel
	build/wheel/venv/bin/pip install --quiet --disable-pip-version-check "$$(ls dist/*.whl)[plot,data,test]"
	cd build/wheel && OMP_WAIT_POLICY=passive venv/bin/python -m pytest -n 2

bench: .venv/installed
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis python/*.egg-info python/rotrnn/*.so
	rm -f .venv/installed

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit("rotrnn needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv .venv

# Editable: only a change of C code or of the packaging installs again.
.venv/installed: pyproject.toml setup.py $(C_FILES) | .venv/bin/python
	@echo "installing rotrnn into .venv"
	@$(PIP) 'setuptools>=77' --editable '.[plot,data,test]'
	@touch $@

.venv/linters: .venv/installed
	@$(PIP) ruff mypy
	@touch $@
