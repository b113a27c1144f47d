# SPDX-License-Identifier: MIT
#
# The developer's entry points; `make help` lists them. setup.py builds the extension,
# this file builds the C test runner (core and backends with no interpreter) and calls
# the tools. Both compile with the flags of src/build/cflags.txt.

PYTHON ?= python3
CLANG_FORMAT ?= $(or $(shell command -v clang-format-14),clang-format)
CLANG_TIDY ?= $(or $(shell command -v clang-tidy-14),clang-tidy)

CUDA ?= 0
DEBUG ?= 1
SHARDS ?= 0
WERROR ?= 0
SAN ?=
TESTS ?=
FUZZ_SECONDS ?= 600
CLANG ?= $(or $(shell command -v clang-14),clang)

CFLAGS_FILE := src/build/cflags.txt
BASE_CFLAGS := $(shell grep -v '^\#' $(CFLAGS_FILE)) -Isrc
TOOLKIT := $(PYTHON) src/build/cuda_toolkit.py

ROOM_SOURCES := $(sort $(wildcard src/core/*.c src/backends/*.c))
SHARD_SOURCES := $(shell grep -l GM_SHARDS src/core/*.c)
RUNNER_SOURCES := $(ROOM_SOURCES) $(sort $(wildcard tests/c/*.c))
C_FILES := $(sort $(wildcard src/*/*.[ch] tests/*/*.[ch] benchmarks/c/*.[ch]))
C_FILES += $(wildcard gpumem/include/*.h examples/c/*.c)

BENCH_SOURCES := $(sort $(wildcard benchmarks/c/*.c))
BENCH_PROGRAMS := $(patsubst benchmarks/c/%.c,build/c/bench/%,$(BENCH_SOURCES))

# One folder for each way to build the runner, so that they do not undo each other.
variant := $(if $(SAN),$(SAN),plain)$(if $(filter 0,$(DEBUG)),-release)$(if $(filter 1,$(SHARDS)),-shards)$(if $(filter 1,$(CUDA)),-cuda)
out := build/c/$(variant)

runner_cflags := $(BASE_CFLAGS) -g -pthread
runner_cflags += $(if $(filter 0,$(DEBUG)),-O3 -DNDEBUG,-O1 -DGM_DEBUG=1)
runner_cflags += -DGM_SHARDS=$(SHARDS)
runner_libs := -pthread
ifeq ($(WERROR),1)
runner_cflags += -Werror
endif
ifneq ($(SAN),)
runner_cflags += -fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all
runner_libs += -fsanitize=$(SAN)
endif
ifeq ($(SAN),thread)
# ThreadSanitizer's memory map does not fit every kernel's address randomisation.
launcher := $(shell setarch -R true 2>/dev/null && echo setarch -R)
endif
ifeq ($(CUDA),1)
runner_cflags += $(shell $(TOOLKIT) cflags)
runner_libs += $(shell $(TOOLKIT) libs)
else
runner_cflags += -DGM_WITH_CUDA=0
endif

.PHONY: help build test test-c asan ubsan tsan fuzz mutants bench-c callgrind
.PHONY: lint format stubtest clean
.DEFAULT_GOAL := help

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12
	@echo
	@echo "Variables: PYTHON, CC, TESTS=substring (test-c, asan, ubsan, tsan),"
	@echo "CUDA=1 (test-c with the CUDA backend), DEBUG=0 (test-c as released),"
	@echo "SHARDS=1 (test-c as for an interpreter without its lock),"
	@echo "WERROR=1, FUZZ_SECONDS=600 (fuzz). For what is built, see the head of setup.py."

build: ## build the extension in place
	$(PYTHON) setup.py build_ext --inplace

test: build ## build in place, then run the whole Python suite
	$(PYTHON) -m pytest

test-c: $(out)/runner ## build and run the C tests
	$(launcher) $(out)/runner $(TESTS)

asan: ## the C tests under AddressSanitizer, leaks included
	$(MAKE) test-c SAN=address

ubsan: ## the C tests under UndefinedBehaviorSanitizer
	$(MAKE) test-c SAN=undefined

tsan: ## the C tests under ThreadSanitizer, also with shards
	$(MAKE) test-c SAN=thread
	$(MAKE) test-c SAN=thread SHARDS=1

fuzz: build/c/fuzz ## fuzz the core for FUZZ_SECONDS=600, from the corpus in the tree
	@mkdir -p build/fuzz
	cd build/fuzz && ../c/fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=512 \
	    -timeout=10 -print_final_stats=1 . ../../tests/fuzz/corpus

mutants: ## break src/core in small ways and see that the C tests notice (an hour)
	$(PYTHON) tests/mutation/mutate.py

bench-c: $(BENCH_PROGRAMS) ## build the C programs of the benchmarks, as released

callgrind: ## count the instructions of a hit and a free against the recorded figures
	$(PYTHON) -m benchmarks.callgrind

lint: ## formatting, static analysis, Python lint, and the rules of the rooms
	$(CLANG_FORMAT) --dry-run -Werror $(C_FILES)
	printf '%s\n' $(ROOM_SOURCES) $(BENCH_SOURCES) | xargs -P $$(nproc) -I{} \
	    $(CLANG_TIDY) --quiet {} -- $(BASE_CFLAGS) -DGM_WITH_CUDA=0
	printf '%s\n' $(SHARD_SOURCES) | xargs -P $$(nproc) -I{} \
	    $(CLANG_TIDY) --quiet {} -- $(BASE_CFLAGS) -DGM_SHARDS=1
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr \
	    --enable=warning,performance,portability -DGM_WITH_CUDA=0 -Isrc src/core src/backends benchmarks/c
	cppcheck --quiet --error-exitcode=1 --std=c11 --inline-suppr \
	    --enable=warning,performance,portability -DGM_SHARDS=1 -Isrc $(SHARD_SOURCES)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/test_style.py

format: ## rewrite C and Python files as the formatters want them
	$(CLANG_FORMAT) -i $(C_FILES)
	$(PYTHON) -m ruff format .

stubtest: ## compare the stubs with the built extension
	$(PYTHON) -m mypy.stubtest --mypy-config-file pyproject.toml gpumem

clean: ## remove everything that was built
	rm -rf build dist *.egg-info gpumem/*.so .pytest_cache .mypy_cache .ruff_cache
	find gpumem src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

$(out)/%.o: %.c $(CFLAGS_FILE) Makefile
	@mkdir -p $(@D)
	@echo 'cc $@'
	@$(CC) $(runner_cflags) -MMD -MP -c $< -o $@

build/c/fuzz: tests/fuzz/fuzz_core.c $(wildcard src/core/*.[ch] src/backends/*.[ch]) Makefile
	@mkdir -p $(@D)
	$(CLANG) $(filter-out -fno-plt,$(BASE_CFLAGS)) -g -O1 -pthread -DGM_DEBUG=1 \
	    -DGM_WITH_CUDA=0 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
	    $< $(ROOM_SOURCES) -o $@

# As setup.py builds the extension, but that it is a program of each.
build/c/bench/%.o: %.c $(CFLAGS_FILE) Makefile
	@mkdir -p $(@D)
	@echo 'cc $@'
	@$(CC) $(BASE_CFLAGS) -O3 -DNDEBUG -fno-plt -g -pthread -DGM_WITH_CUDA=0 \
	    $(if $(filter 1,$(WERROR)),-Werror) -MMD -MP -c $< -o $@

build/c/bench/%: build/c/bench/benchmarks/c/%.o $(ROOM_SOURCES:%.c=build/c/bench/%.o)
	@echo 'ld $@'
	@$(CC) $^ -pthread -o $@

.SECONDARY:
-include $(patsubst %.c,build/c/bench/%.d,$(ROOM_SOURCES) $(BENCH_SOURCES))

runner_objects := $(RUNNER_SOURCES:%.c=$(out)/%.o)

$(out)/runner: $(runner_objects)
	@echo 'ld $@'
	@$(CC) $^ $(runner_libs) -o $@

-include $(runner_objects:.o=.d)
