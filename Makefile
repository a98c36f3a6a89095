# Sets up .venv in this checkout and runs the project from it; needs Python 3.11 or newer and a C compiler, nothing else.
# Every target does what it depends on, and does nothing twice: the stamps in .venv say what is up to date.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
FAST := rocketcore/_fast
KERNELS := $(wildcard $(FAST)/*.pyx)
KERNEL_PARTS := $(wildcard $(FAST)/*.pxd $(FAST)/include/*.h)
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$name"; break; }; done)
# Tests wait for half of their time: for servers, JVMs, disks and timers. So many keep two cores busy.
TEST_PROCESSES ?= 3
TEST_OPTIONS ?=
BENCH_OPTIONS ?=
FUZZ_OPTIONS ?=
SANITIZE_OPTIONS ?=
COMPARE_OPTIONS ?=
SPARK_VERSIONS ?= 4.1 4.2 4.3
SPARK_OPTIONS ?= tests/spark
PYTHONS ?= 3.11 3.12 3.13 3.14
PYTHONS_OPTIONS ?= tests/unit
ARM64_OPTIONS ?= tests/unit/fast
PORTABLE_OPTIONS ?= tests/unit/client tests/unit/transport tests/unit/protocol tests/unit/admin tests/integration/test_portable.py \
	$(foreach name,group_consumer group_requests queue_locks,--ignore tests/unit/client/test_$(name).py)
# What uses the libraries that we need: the rest of the tests asks the same of our own code once more.
LOWEST_OPTIONS ?= tests/unit tests/integration/cli tests/integration/console tests/integration/test_arrow.py \
	tests/integration/test_local_cluster.py tests/integration/test_readme.py tests/integration/test_telemetry.py \
	tests/integration/test_tls.py tests/spark/test_batch.py tests/spark/test_session.py

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes start in a run of the tests: none compiles again what another has, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=
# The virtual environment's commands first: demo, tests and Spark's workers all run the same interpreter.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup demo test test-lowest again-lowest test-pythons test-portable test-arm64 fault fault-streams soak fuzz sanitize bench bench-once compare compare-once lint docs interop apache-tests spark-cluster spark-matrix build package-check clean

help:
	@echo 'make demo      run the main job: cluster up, Spark writes, two consumers read, every message checked'
	@echo 'make test      run the tests in three processes; those against Apache RocketMQ too where a JDK and Maven are there'
	@echo 'make test-lowest   tests with the lowest version that pyproject.toml allows of everything (LOWEST_OPTIONS="tests/unit")'
	@echo 'make test-pythons   the unit tests with each Python from 3.11 to 3.14 that is found (PYTHONS="3.12 3.13")'
	@echo 'make test-portable  tests of the clients on a build without the kernels that need Linux'
	@echo 'make test-arm64     the tests of the kernels on arm64, under qemu-user (Debian, with a cross compiler)'
	@echo 'make fault     kill the broker, damage its files, fail every call on them; look for lost messages (minutes)'
	@echo 'make fault-streams   kill drivers, workers, brokers and name servers under Spark streams (JDK, Maven; an hour)'
	@echo 'make soak      five minutes of load while name servers die, and on a disk that is soon full; Spark tasks of 10 M rows'
	@echo 'make fuzz      each decoder under a fuzzer with sanitizers (FUZZ_OPTIONS="--seconds 60 frame"; needs clang)'
	@echo 'make sanitize  the tests with kernels that watch every byte they touch (SANITIZE_OPTIONS="tests/unit")'
	@echo 'make bench     run the benchmarks of the kernels (BENCH_OPTIONS="-k name")'
	@echo 'make compare   servers and clients beside Apache RocketMQ (COMPARE_OPTIONS="--only nameserver"; JDK, Maven)'
	@echo 'make lint      ruff (rules and format), mypy --strict, stubtest, cython-lint, and our prose in pages and texts of the program'
	@echo 'make docs      the pages as a site, into site/'
	@echo 'make interop   only the tests against Apache RocketMQ (needs a JDK and Maven)'
	@echo 'make apache-tests   the integration tests of Apache RocketMQ itself, on our servers (a JDK and Maven; a quarter of an hour)'
	@echo 'make spark-cluster   Spark on a standalone cluster: a wheel or a packed environment on its nodes, nodes that die (minutes)'
	@echo 'make spark-matrix    the tests of Spark on every PySpark that is supported (SPARK_VERSIONS="4.1 4.2 4.3")'
	@echo 'make build     sdist and wheel, into dist/'
	@echo 'make package-check   both built, each installed away from here, and a message sent'
	@echo 'make clean     remove what was built; .venv stays'

setup: $(VENV)/.stamp-kernels

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.stamp-packages: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'setuptools>=77.0.1' 'Cython>=3.1' wheel
	ROCKETCORE_NO_KERNELS=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[dev]'
	@touch $@

$(VENV)/.stamp-kernels: $(VENV)/.stamp-packages setup.py $(KERNELS) $(KERNEL_PARTS)
	$(BIN)/python setup.py --quiet build_ext --inplace --parallel 2
	@touch $@

demo: setup
	$(BIN)/rocket demo

test: setup tests/unit/__pycache__
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(TEST_OPTIONS)

# Every process of the first run would rewrite the asserts of all tests, half a minute of its processor: here two do, half
# of them each, and the others find what is written. What does not even import is told by the run itself.
tests/unit/__pycache__: | setup
	@$(BIN)/python -m pytest --collect-only -q tests/unit tests/property >/dev/null & \
	$(BIN)/python -m pytest --collect-only -q tests/conformance tests/fault tests/integration tests/interop tests/spark >/dev/null; wait

# An environment of its own, with the kernels that are built already. What mcp needs is newer than what others allow at the
# lowest, and lies beside. Old releases warn of what is new in others: starlette of anyio, PySpark 4.1 of its own sockets.
LOWEST := $(VENV)-lowest
LOWEST_PYTHON := PATH="$(CURDIR)/$(LOWEST)/bin:$$PATH" $(LOWEST)/bin/python
LOWEST_WARNINGS := -W 'ignore:The anyio.abc.BlockingPortal alias:DeprecationWarning' \
	-W 'ignore:unclosed <socket:ResourceWarning'
LOWEST_MCP := PYTHONPATH=$(LOWEST)/mcp $(LOWEST)/bin/python -m pytest tests/integration/cli/test_mcp.py
test-lowest: $(LOWEST)/.stamp
	$(LOWEST_PYTHON) -m pytest -n $(TEST_PROCESSES) \
		-m 'not spark_cluster and not apache_tests and not interop and not soak and not fault' \
		$(LOWEST_WARNINGS) --ignore tests/integration/cli/test_mcp.py $(LOWEST_OPTIONS)
	$(LOWEST_MCP)

# For .ci/run: those that failed, once more, and the ones that were to follow them.
again-lowest: $(LOWEST)/.stamp
	$(LOWEST_PYTHON) .ci/run_again.py "$(OUTCOMES)" "$(FLAKY)" $(LOWEST_WARNINGS)
	$(LOWEST_MCP)

$(LOWEST)/.stamp: pyproject.toml .ci/lowest_versions.py | setup
	rm -rf $(LOWEST)
	$(BIN)/python -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet 'setuptools>=77.0.1' 'Cython>=3.1' wheel
	$(BIN)/python .ci/lowest_versions.py --without mcp --without fuzz --without docs >$(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet -r $(LOWEST)/lowest.txt
	$(BIN)/python .ci/lowest_versions.py mcp >$(LOWEST)/lowest-mcp.txt
	$(LOWEST)/bin/python -m pip install --quiet --target $(LOWEST)/mcp -r $(LOWEST)/lowest-mcp.txt
	ROCKETCORE_NO_KERNELS=1 $(LOWEST)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

fault: setup
	ROCKETCORE_FAULT_CYCLES=$${ROCKETCORE_FAULT_CYCLES:-200} \
	ROCKETCORE_FAULT_TIMER_CYCLES=$${ROCKETCORE_FAULT_TIMER_CYCLES:-40} \
	ROCKETCORE_FAULT_MUTATIONS=$${ROCKETCORE_FAULT_MUTATIONS:-20000} \
	ROCKETCORE_FAULT_VERIFIED=$${ROCKETCORE_FAULT_VERIFIED:-2000} \
	ROCKETCORE_FAULT_STRIDE=$${ROCKETCORE_FAULT_STRIDE:-1} \
	ROCKETCORE_FAULT_TOPICS=$${ROCKETCORE_FAULT_TOPICS:-1000} \
	ROCKETCORE_FAULT_STREAM_KILLS=$${ROCKETCORE_FAULT_STREAM_KILLS:-8} \
	$(BIN)/python -m pytest -m fault --timeout 3600 -o faulthandler_timeout=0 -s

fault-streams: setup
	ROCKETCORE_FAULT_STREAM_KILLS=$${ROCKETCORE_FAULT_STREAM_KILLS:-100} \
	$(BIN)/python -m pytest tests/fault/streams -o faulthandler_timeout=0 -s

soak: setup
	ROCKETCORE_SOAK_SECONDS=$${ROCKETCORE_SOAK_SECONDS:-300} \
	ROCKETCORE_SOAK_ROWS=$${ROCKETCORE_SOAK_ROWS:-10000000} \
	$(BIN)/python -m pytest -m soak --timeout 3600 -o faulthandler_timeout=0 -s

fuzz: setup
	ROCKETCORE_NO_KERNELS=1 $(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[fuzz]'
	$(BIN)/python -m tests.fuzz.run $(FUZZ_OPTIONS)

sanitize: setup
	$(BIN)/python -m tests.fuzz.sanitize $(SANITIZE_OPTIONS)

bench: setup
	$(BIN)/python -m pytest bench -o addopts='--strict-markers --strict-config -ra' --benchmark-only --timeout 3600 $(BENCH_OPTIONS)

bench-once: setup
	$(BIN)/python -m pytest bench -o addopts='--strict-markers --strict-config -ra' --benchmark-disable $(BENCH_OPTIONS)

compare: setup
	$(BIN)/python -m bench.side_by_side $(COMPARE_OPTIONS)

compare-once: setup
	$(BIN)/python -m bench.side_by_side --rounds 1 --seconds 0.5 --warm 1 $(COMPARE_OPTIONS)

interop: setup
	$(BIN)/python -m pytest -m interop --timeout 1800

apache-tests: setup
	$(BIN)/python -m pytest -m apache_tests --timeout 3600 -o faulthandler_timeout=0

spark-cluster: setup
	$(BIN)/python -m pytest -m spark_cluster --timeout 1800 -o faulthandler_timeout=0

# An environment for each version, with the kernels that are built already. All run, whatever fails before. PySpark 4.1
# leaves its own sockets to the garbage collector.
spark-matrix: $(SPARK_VERSIONS:%=$(VENV)-matrix/pyspark-%/.stamp)
	failed=; for version in $(SPARK_VERSIONS); do \
		bin=$(CURDIR)/$(VENV)-matrix/pyspark-$$version/bin; \
		"$$bin/python" -c 'import pyspark; print("=== PySpark", pyspark.__version__)'; \
		PATH="$$bin:$$PATH" "$$bin/python" -m pytest --timeout 600 -W 'ignore:unclosed <socket:ResourceWarning' $(SPARK_OPTIONS) || failed="$$failed $$version"; \
	done; test -z "$$failed" || { echo "failed with PySpark$$failed" >&2; exit 1; }

$(VENV)-matrix/pyspark-%/.stamp: pyproject.toml | setup
	test -x $(@D)/bin/python || $(BIN)/python -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet 'setuptools>=77.0.1' 'Cython>=3.1' wheel
	ROCKETCORE_NO_KERNELS=1 $(@D)/bin/python -m pip install --quiet --no-build-isolation --editable '.[dev]' 'pyspark==$*.*'
	@touch $@

test-pythons:
	.ci/test-pythons '$(PYTHONS)' -n $(TEST_PROCESSES) $(PYTHONS_OPTIONS)

test-arm64: setup
	.ci/test-arm64 $(ARM64_OPTIONS)

# The kernels that build on any system, in a folder of their own; the tests of what a client is made of run on them, but
# for those that play a broker.
PORTABLE := $(CURDIR)/build/portable
test-portable: setup
	ROCKETCORE_PORTABLE=1 $(BIN)/python setup.py --quiet build_ext --build-lib $(PORTABLE)/lib --build-temp $(PORTABLE)/temp --parallel 2
	ROCKETCORE_KERNELS=$(PORTABLE)/lib/rocketcore/_fast PYTHONPATH=$(CURDIR)/tests/fuzz/overlay:$(CURDIR) \
		$(BIN)/python -m pytest -n $(TEST_PROCESSES) $(PORTABLE_OPTIONS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/stubtest --concise --ignore-disjoint-bases --ignore-unused-allowlist --allowlist .ci/stubtest.allowlist \
		$(patsubst $(FAST)/%.pyx,rocketcore._fast.%,$(KERNELS))
	$(BIN)/cython-lint $(FAST)
	$(BIN)/python .ci/prose.py

# An environment of its own: a site needs nothing of ours. The variable silences what Material says of MkDocs 2.
DOCS := $(VENV)-docs
docs: $(DOCS)/.stamp
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet

$(DOCS)/.stamp: pyproject.toml | $(BIN)/python
	test -x $(DOCS)/bin/python || $(BIN)/python -m venv $(DOCS)
	$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' >$(DOCS)/docs.txt
	$(DOCS)/bin/python -m pip install --quiet -r $(DOCS)/docs.txt
	@touch $@

build: setup
	$(BIN)/python -m pip install --quiet build
	$(BIN)/python -m build --no-isolation

package-check:
	.ci/check-package $(PYTHON)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f $(FAST)/*.so $(VENV)/.stamp-kernels
	find rocketcore tests bench examples -name __pycache__ -prune -exec rm -rf {} +
