# Two commands are all a visitor needs: `make demo` and `make test`. Each does its own set-up; the second time it is quick.
# `make help` lists the rest. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
UV ?= uv
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

# The stamp lives in the environment it describes: they go together.
INSTALLED := $(VENV)/.installed

SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup jars lock demo bench bench-latency bench-start bench-scale bench-state bench-nexmark test test-fast test-ci coverage messages lowest test-all readme matrix chaos soak simulate model-check simulate-mutants mutants mutants-nightly recovery lint format types contracts check figures servers dist clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: jars ## environment, package and jars (every target below does it by itself)

demo: jars ## kill -9 a pipeline on a real broker again and again and count: nothing lost, nothing twice
	$(BIN)/onceward demo $(ARGS)

bench: jars ## encoder speed, and the sink beside Spark's own (ARGS="--peers": beside Flink and Kafka Streams, too)
	$(BIN)/python -m benchmarks $(ARGS)

bench-latency: jars ## send to visible at 1,000 records/s beside Spark's own sink, and steps of a batch (4 min)
	$(BIN)/python -m benchmarks --latency $(ARGS)

bench-start: jars ## seconds to the first commit of a start, and after kill -9, beside Spark's own sink (8 min)
	$(BIN)/python -m benchmarks --part start $(ARGS)

bench-scale: jars ## a batch in up to 1,000 tasks and output partitions beside Spark's own sink, a worker's memory (30 min)
	$(BIN)/python -m benchmarks --part scale $(ARGS)

bench-state: jars ## windows, a join and sessions beside Spark's own sink (ARGS="--keys 10000000": as many windows) (10 min)
	$(BIN)/python -m benchmarks --part state $(ARGS)

bench-nexmark: jars ## six queries of Nexmark beside Flink's SQL and Spark's own sink (needs cargo and javac; ARGS="--kills 2": answers under kill -9) (20 min)
	$(BIN)/python -m benchmarks --part nexmark $(ARGS)

# Each test has one tier, fast, main, ci or chaos, which tests/tiers.py computes from what it stands on. Two workers have a
# broker and a Spark session each; whoever is through takes tests over from the other.
PYTEST := $(BIN)/python -m pytest
TWO := -n 2 --dist worksteal

# Fast tests wait, too: for sockets that are silent on purpose, a second each.
THREE := -n 3 --dist worksteal

# Each test worker, and each process that a test starts, would compile 700 modules anew.
unexport PYTHONDONTWRITEBYTECODE

test: jars ## the newcomer's proof: the fast tests, then one broker and one Spark, and a kill -9 (10 min)
	$(PYTEST) -m "fast or main" $(TWO) --durations=20 $(ARGS)

test-fast: $(INSTALLED) ## the tests that need neither a JVM nor a broker (a minute)
	$(PYTEST) -m fast $(THREE) --durations=10 $(ARGS)

# In two runs, so that what a quick test can find is found first. Without coverage, which takes half as long again.
test-ci: jars ## what continuous integration runs: every tier but chaos, with durations (25 min)
	$(PYTEST) -m fast $(THREE) --durations=10 $(ARGS)
	$(PYTEST) -m "main or ci" $(TWO) --durations=40 $(ARGS)

coverage: jars ## the same tests, and what they cover of the package (35 min)
	$(PYTEST) -m "fast or main or ci" $(TWO) --cov --cov-report=term $(ARGS)

messages: $(INSTALLED) ## write tests/messages.json anew from the fast tests (ARGS="tests/unit/test_x.py": of these only, of every tier)
	mkdir -p build && rm -f build/messages.jsonl
	ONCEWARD_RECORD_MESSAGES=build/messages.jsonl $(PYTEST) -m "$(if $(ARGS),,fast)" $(TWO) $(ARGS)
	PYTHONPATH=tests $(BIN)/python -m support.errors build/messages.jsonl

# What pyproject.toml promises to run with, and nobody would notice otherwise: pip takes the newest.
lowest: ## the fast tests with the oldest packages that pyproject.toml lets in (needs uv; 5 min)
	test -x .venv-lowest/bin/python || $(PYTHON) -m venv .venv-lowest
	$(UV) pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct --group dev \
	    --editable ".[demo,postgresql,mysql,redis,opensearch,avro,metrics,tracing,dashboard]"
	.venv-lowest/bin/python -m pytest -m fast $(TWO) $(ARGS)

test-all: jars ## every test, with more examples
	$(PYTEST) --hypothesis-profile=thorough $(ARGS)

# Without the lock: whatever pip resolves today has to run the first job of the README.
readme: ## README's commands in an empty environment: install, first job, kill -9, verify (2 min; ARGS="--pyspark 4.1.1 --kafka 4.4.0")
	$(PYTHON) tools/readme_in_an_empty_environment.py $(ARGS)

# Newer Sparks, each in an environment of its own: everything from the lock but PySpark (and its py4j). Spark's own
# settings stay at their defaults, adaptive execution included. docs/how-to/deploying.md has the table.
MATRIX ?= 4.1.1 4.1.3 4.2.0 4.3.0

matrix: $(MATRIX:%=matrix-%) ## README, the Spark and the contract tests on newer PySparks (MATRIX="4.1.1 4.3.0", KAFKA=4.4.0, JAVA_HOME=…)

matrix-%: .venv-matrix/%/.installed
	$(PYTHON) tools/readme_in_an_empty_environment.py --pyspark $* $(KAFKA:%=--kafka %)
	.venv-matrix/$*/bin/onceward jars
	$(KAFKA:%=ONCEWARD_TEST_KAFKA=%) .venv-matrix/$*/bin/python -m pytest -m "main or ci" $(TWO) tests/spark tests/contract $(ARGS)

.PRECIOUS: .venv-matrix/%/.installed
.venv-matrix/%/.installed: requirements.lock pyproject.toml
	@.ci/require-tools $(PYTHON)
	@echo "installing PySpark $* and the other locked packages (400 MB: minutes the first time)"
	$(PYTHON) -m venv .venv-matrix/$*
	awk '/^[a-z]/ { other = !/^pyspark==/ } other' requirements.lock > .venv-matrix/$*/requirements.lock
	.venv-matrix/$*/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --use-pep517 \
	    --require-hashes --requirement .venv-matrix/$*/requirements.lock
	.venv-matrix/$*/bin/python -m pip --disable-pip-version-check --quiet install --use-pep517 "pyspark==$*"
	.venv-matrix/$*/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --no-build-isolation --editable .
	.venv-matrix/$*/bin/python -m pip --disable-pip-version-check --quiet check
	@touch $@

chaos: jars ## every fault of tests/fault_table.py, old brokers, clusters of their own: with a table at the end
	mkdir -p build/evidence
	$(PYTEST) -m "fault or chaos" -n 2 --dist loadfile --no-loadscope-reorder --durations=20 $(ARGS) | tee build/evidence/chaos.txt

soak: jars ## random faults and a verdict: SEED=1 MINUTES=60 DIR=folder REPORT=file.md; or 100 kills: SINK=postgres (or mysql, files) KILLS=100
ifdef SINK
	$(BIN)/onceward demo --sink $(SINK) --kills $(or $(KILLS),100) $(if $(SEED),--seed $(SEED)) $(ARGS)
else
	PYTHONPATH=tests $(BIN)/python -m soak $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(DIR),--dir $(DIR)) --report $(or $(REPORT),build/evidence/soak.md) $(ARGS)
endif

# Without a JVM, a broker, sockets or threads: docs/explanation/simulation.md.
simulate: $(INSTALLED) ## a million runs of the protocol: SEEDS=1-1000000 (or SEED=7, one of them, told) PIPELINE=kafka JOBS=2 MINUTES=60 REPORT=file.md KEEP_GOING=1
	PYTHONPATH=tests $(BIN)/python -m simulation $(if $(SEED),--seed $(SEED) --show,--seeds $(or $(SEEDS),1-20000) --jobs $(or $(JOBS),2)) \
	    $(if $(PIPELINE),--pipeline $(PIPELINE)) $(if $(MINUTES),--minutes $(MINUTES)) \
	    $(if $(SEED)$(REPORT),$(REPORT:%=--report %),--report build/evidence/simulation.md) $(if $(KEEP_GOING),--keep-going) $(ARGS)

mutants: jars ## break the code in known ways, one by one: some test must notice each (20 min)
	$(BIN)/python tests/mutants/run.py $(ARGS)

# An operator-based tool, in an environment of its own, breaks a copy of the code that decides, at random, for so many
# minutes: those that nobody noticed are in build/evidence. tests/mutants/nightly.toml has the modules and the tests.
mutants-nightly: jars ## break the code that decides in unknown ways: which does no test notice? (MINUTES=240)
	$(PYTHON) -m venv build/cosmic-ray
	build/cosmic-ray/bin/python -m pip --disable-pip-version-check --quiet install cosmic-ray==8.7.0
	rm -rf build/mutants-nightly && mkdir -p build/mutants-nightly build/evidence
	cp -r src tests examples docs pyproject.toml build/mutants-nightly
	cd build/mutants-nightly && export PATH="$(CURDIR)/$(BIN):$(CURDIR)/build/cosmic-ray/bin:$$PATH" && \
	    export PYTHONPATH="$$PWD/src:$$PWD/tests" && nightly=tests/mutants/nightly.toml && \
	    cosmic-ray init $$nightly session.sqlite && cr-filter-operators session.sqlite $$nightly && \
	    cosmic-ray baseline $$nightly && { timeout $(or $(MINUTES),240)m cosmic-ray exec $$nightly session.sqlite || [ $$? = 124 ]; } && \
	    { cr-report session.sqlite | tail -3; cr-report --surviving-only --show-diff session.sqlite; } > ../evidence/mutants-nightly.txt
	head -3 build/evidence/mutants-nightly.txt

model-check: jars ## hold the simulation's conversations with real brokers, 4.3.1 and 3.9.1 (20 min; RECORD=1 CLUSTER=4.3.1 QUICK=1)
	PYTHONPATH=tests $(BIN)/python -m simulation.model_check $(if $(RECORD),--record) $(if $(QUICK),--quick) \
	    $(if $(CLUSTER),--cluster $(CLUSTER)) $(ARGS)

simulate-mutants: $(INSTALLED) ## break the code in known ways: what does the simulation find, and how soon? (1 h)
	PYTHONPATH=tests $(BIN)/python -m simulation.mutants $(ARGS)

recovery: jars ## how long a pipeline takes from kill -9 to its next batch, and what for
	PYTHONPATH=tests/chaos:tests $(BIN)/python tests/chaos/measure_recovery.py $(ARGS)

servers: jars ## newer MySQLs for tests, 8.0.33 and Debian's newest (650 MB, once; slow tests fetch them by themselves)
	PYTHONPATH=tests $(BIN)/python -m support.newest_mysql

check: lint types contracts ## lint, types and contracts

lint: $(INSTALLED) ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

format: $(INSTALLED) ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

types: $(INSTALLED) ## mypy, strict
	$(BIN)/mypy

contracts: $(INSTALLED) ## import-linter: who may import whom
	$(BIN)/lint-imports

figures: $(INSTALLED) ## measure the code: sizes, words, imports, beside their goals (ARGS="--before REF", "--list verbs", "--all")
	$(BIN)/python tools/code_figures.py $(ARGS)

dist: $(INSTALLED) ## build wheel and source archive, and import the package from the wheel
	rm -rf dist build
	$(BIN)/python -m build --no-isolation --outdir dist .
	$(PIP) install --no-deps --target build/wheel dist/*.whl
	cd build && PYTHONPATH=wheel ../$(BIN)/python -c 'import onceward; assert "/build/wheel/" in onceward.__file__, onceward.__file__'

lock: ## renew requirements.lock (needs uv)
	{ echo '# Every package for Python 3.10 and newer on every platform, by version and hash. Made by `make lock`; do not edit.'; \
	  $(UV) pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-header \
	      --no-emit-index-url --no-emit-find-links --extra demo --group dev pyproject.toml requirements.in; \
	} > requirements.lock.new
	mv requirements.lock.new requirements.lock

clean: ## remove what builds and tests leave
	rm -rf build dist .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis spark-warehouse metastore_db derby.log
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## and the environment
	rm -rf $(VENV) .venv-matrix .venv-lowest

$(BIN)/python:
	@.ci/require-tools $(PYTHON)
	$(PYTHON) -m venv $(VENV)

# Everything from the lock, by hash; then the package itself, built with what the lock installed. Without the resolver:
# the lock names every package, and older pips take `coverage[toml]`, asked for by another package, for a package beside
# the locked `coverage` and want its newest version, which has no hash. `pip check` says what a lock lacks.
$(INSTALLED): requirements.lock pyproject.toml | $(BIN)/python
	@.ci/require-tools $(PYTHON)
	@echo "installing the locked packages (PySpark is 400 MB: minutes the first time)"
	$(PIP) install --no-deps --use-pep517 --require-hashes --requirement requirements.lock
	$(PIP) install --no-deps --no-build-isolation --editable .
	$(PIP) check
	@touch $@

# Asked every time (a blink when the jars are there), because their folder is not ours and may have been emptied.
jars: $(INSTALLED)
	@$(BIN)/onceward jars
