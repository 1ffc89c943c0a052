# `make help` says what there is.  Nothing here needs root or an activated environment.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

VENV := .venv
BIN := $(VENV)/bin
STAMPS := .cache/stamps
PIP_FLAGS := --quiet --disable-pip-version-check --no-input

# Tests start agents and commands some thousand times.  Where Python may not keep what it has
# compiled, each of them compiles all modules again: an agent's start took 5 s of CPU instead of 2.
unexport PYTHONDONTWRITEBYTECODE

# Two cores is what CI has.  A third of their time, tests wait: for leases, for a store, for what a
# kill leaves.  With a fourth worker, the kills of `make verify` take the cores of the others.
test: WORKERS ?= 3
verify: WORKERS ?= 3
SEEDS ?= 1000
FRAMES ?= 10000000
# Chaos: seconds of faults, the seed that draws them, and how many agents there are.
# (Attacks: their seconds are theirs all together, and ONLY names one of them, or a family.)
chaos: SECONDS ?= 150
churn: SECONDS ?= 3600
attack attack-long: SECONDS ?= 300
chaos-compacted spark-chaos: SECONDS ?= 600
long-topics: SECONDS ?= 3600
REQUESTS ?= 10000000
SEED ?= 1
AGENTS ?= 3
ONLY ?=
# More for pytest: make test ARGS='-k manifest'
ARGS ?=

KERNEL_SOURCES := $(wildcard tiering/driftlog_tiering/batches/_kernel.pyx tiering/driftlog_tiering/batches/*.h)

.PHONY: help setup demo local test verify check format bench sim fuzz chaos churn attack attack-long chaos-compacted spark-chaos spark-streams long-topics components kafka-jars kafka-applications schema-registry spark-jars spark-classes localstack kaskade etcd prometheus clean distclean

help:
	@echo "make setup          $(VENV) with driftlog, editable, and all it needs"
	@echo "make demo           the main job on real data: Kafka client in, Parquet, Spark out (INPUT=file.ndjson for yours)"
	@echo "make local          LocalStack, etcd and three agents here, without Docker, and the demo through them (DEMO=only: no more)"
	@echo "make test           ten minutes on two cores: unit, contract, a short simulation, one round trip of each client"
	@echo "                    (ARGS='-k name' instead: these tests, of both suites)"
	@echo "make verify         every other test: 368 seeds, planted bugs, beside Apache Kafka, kills, chaos, attacks"
	@echo "make check          ruff, mypy, import-linter and the layer tests"
	@echo "make format         ruff's formatter and import order, applied"
	@echo "make bench          ours beside Apache Kafka (hours; ARGS=--quick for minutes)"
	@echo "make sim SEEDS=n    the simulation, for n seeds"
	@echo "make fuzz FRAMES=n  n mutated frames through the connection and the decoders"
	@echo "make chaos          real agents, etcd and S3 killed, frozen and cut off (SECONDS=150 SEED=1 AGENTS=3)"
	@echo "make chaos-compacted  the same on compacted topics: each reader must end with the latest values (SECONDS=600)"
	@echo "make spark-streams  a stream in virtual time, killed between any two steps, beside everything that changes its log (SEEDS=1000)"
	@echo "make spark-chaos    A stream of Spark while its agent and the query are killed (SECONDS=600)"
	@echo "make long-topics    Kafka Streams, Connect and a schema registry on compacted topics (SECONDS=3600)"
	@echo "make churn          garbage of every kind made and collected under kills, then the bucket, etcd and memory (SECONDS=3600 SEED=1)"
	@echo "make attack         hostile clients against real agents, one attack after the other (SECONDS=300 SEED=1 ONLY=name)"
	@echo "make attack-long    the same again and again, until so many requests were sent (REQUESTS=10000000)"
	@echo "make components     what tests need beside Python packages: Kafka's and Spark's jars, LocalStack, kaskade, etcd, Prometheus"
	@echo "make clean          what builds and tests leave; distclean: $(VENV) and .cache too"

# ── Set-up ──

setup: $(STAMPS)/setup

$(STAMPS)/setup: pyproject.toml hatch_build.py $(KERNEL_SOURCES)
	@tools/preflight report
	@test -x $(BIN)/python || { python=$$(tools/preflight python) && $$python -m venv $(VENV); }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "driftlog: $(VENV) is older than Python 3.11: make distclean, then make setup" >&2; exit 1; }
	@echo "driftlog: installing into $(VENV) (the first time takes a minute or two)"
	@$(BIN)/python -m pip install $(PIP_FLAGS) --upgrade 'pip>=25'
	@$(BIN)/python -m pip install $(PIP_FLAGS) --editable '.[dev]'
	@$(BIN)/python -c 'import driftlog_tiering.batches._kernel' 2>/dev/null || { \
		echo "driftlog: THE RECORD KERNEL IS NOT COMPILED; its Python twin is 20 to 80 times slower." >&2; \
		echo "    Why: $(BIN)/pip install -v --editable . prints it.  Then: make setup" >&2; }
	@mkdir -p $(STAMPS) && touch $@

# ── What tests need beside Python packages; each is fetched once, and again when its list changes ──

components: kafka-jars kafka-applications schema-registry spark-jars spark-classes localstack kaskade etcd prometheus

kafka-jars: .cache/kafka-jars.stamp
kafka-applications: .cache/kafka-applications.stamp
schema-registry: .cache/schema-registry.stamp
spark-jars: .cache/spark-jars.stamp
spark-classes: .cache/spark-classes.stamp
localstack: .cache/localstack.stamp
kaskade: .cache/kaskade.stamp
etcd: .cache/etcd-go.stamp .cache/etcd-debian.stamp
prometheus: .cache/prometheus.stamp

.cache/kafka-jars.stamp: tools/kafka-peer/pom.xml
	@tools/fetch-jars kafka-peer kafka-jars

.cache/kafka-applications.stamp: tools/kafka-applications/pom.xml
	@tools/fetch-jars kafka-applications kafka-applications

.cache/spark-classes.stamp: tools/spark_archive.py | $(STAMPS)/setup
	@echo "driftlog: archiving Spark's classes (once)"
	@$(BIN)/python -m tools.spark_archive && touch $@

.cache/schema-registry.stamp: tools/schema-registry/pom.xml
	@tools/fetch-jars schema-registry schema-registry copy \
		|| echo "driftlog: no schema registry from this Maven repository: its tests are skipped"

.cache/spark-jars.stamp: tools/spark-jars/pom.xml
	@tools/fetch-jars spark-jars spark-jars

.cache/localstack.stamp: tools/localstack-requirements.txt | $(STAMPS)/setup
	@echo "driftlog: installing LocalStack into .venv-localstack (once)"
	@test -x .venv-localstack/bin/python || $(BIN)/python -m venv .venv-localstack
	@.venv-localstack/bin/python -m pip install $(PIP_FLAGS) --requirement $<
	@touch $@

.cache/kaskade.stamp: tools/kaskade-requirements.txt | $(STAMPS)/setup
	@echo "driftlog: installing kaskade into .venv-kaskade (once)"
	@test -x .venv-kaskade/bin/python || $(BIN)/python -m venv .venv-kaskade
	@if .venv-kaskade/bin/python -m pip install $(PIP_FLAGS) --requirement $<; then touch $@; else \
		rm -rf .venv-kaskade; echo "driftlog: no kaskade from this registry: its tests are skipped"; fi

.cache/etcd-go.stamp: tools/etcd/go.mod tools/etcd/main.go
	@tools/fetch-etcd go

.cache/etcd-debian.stamp:
	@tools/fetch-etcd debian

.cache/prometheus.stamp: tools/prometheus/go.mod
	@tools/fetch-prometheus

# ── Work ──

# Spark's own jars read a directory: nothing has to be fetched.
demo: setup
	@tools/preflight java
	@$(BIN)/python -m tools.demo $(if $(INPUT),'$(INPUT)')

local: setup localstack etcd
	@$(BIN)/python -m tools.local $(if $(filter only,$(DEMO)),--demo-only) $(if $(INPUT),--input '$(INPUT)')

# Each test is in one of two suites: tests/support/suites.py.
PYTEST_OPTIONS = -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --durations 10

test: setup $(if $(ARGS),components,kafka-jars etcd)
	@$(BIN)/python -m tools.test_run test $(PYTEST_OPTIONS) $(or $(ARGS),-m 'not verify')

verify: setup components
	@$(BIN)/python -m tools.test_run verify $(PYTEST_OPTIONS) -m verify $(ARGS)

# Every check runs, and the last line says which failed.
check: setup
	@failed=; \
	run() { echo "── $$*"; "$$@" || failed="$$failed $$(basename $$1):$$2"; }; \
	run $(BIN)/ruff check .; \
	run $(BIN)/ruff format --check --quiet .; \
	run $(BIN)/mypy; \
	run $(BIN)/lint-imports --no-logo; \
	run $(BIN)/python -m pytest -q -p no:cacheprovider tests/test_layers.py; \
	if [ -n "$$failed" ]; then echo "make check: failed:$$failed" >&2; exit 1; fi; \
	echo "make check: all passed"

format: setup
	@$(BIN)/ruff check --select I --fix --quiet .
	@$(BIN)/ruff format .

bench: setup components
	@$(BIN)/python -m benchmarks.run $(ARGS)

sim: setup
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

fuzz: setup
	@$(BIN)/python -m tests.fuzz --frames $(FRAMES) $(ARGS)

chaos: setup etcd localstack
	@$(BIN)/python -m tests.chaos --seconds $(SECONDS) --seed $(SEED) --agents $(AGENTS) $(ARGS)

chaos-compacted: setup etcd localstack
	@$(BIN)/python -m tests.chaos.compacted --seconds $(SECONDS) --seed $(SEED) --agents $(AGENTS) $(ARGS)

long-topics: setup kafka-applications schema-registry
	@$(BIN)/python -m tests.long_topics --seconds $(SECONDS) --seed $(SEED) $(ARGS)

spark-streams: setup
	@$(BIN)/python -m tests.spark.streams --seeds $(SEEDS) $(ARGS)

spark-chaos: setup
	@$(BIN)/python -m tests.spark.chaos --seconds $(SECONDS) --seed $(SEED) $(ARGS)

churn: setup etcd
	@$(BIN)/python -m tests.churn --seconds $(SECONDS) --seed $(SEED) --agents $(AGENTS) $(ARGS)

attack: setup
	@$(BIN)/python -m tests.attack --seconds $(SECONDS) --seed $(SEED) $(if $(ONLY),--only '$(ONLY)') $(ARGS)

attack-long: setup
	@$(BIN)/python -m tests.attack --seconds $(SECONDS) --seed $(SEED) --requests $(REQUESTS) $(if $(ONLY),--only '$(ONLY)') $(ARGS)

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	rm -f tiering/driftlog_tiering/batches/_kernel.c tiering/driftlog_tiering/batches/_kernel.*.so $(STAMPS)/setup
	find metadata tiering agents spark_reader client tests benchmarks tools -name __pycache__ -prune -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) .venv-localstack .venv-kaskade .cache
