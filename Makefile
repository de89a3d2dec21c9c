# Everything a developer runs. A machine needs only make and Python 3.11 or newer: the first target that needs an
# environment creates it. What is installed is remembered in .stamps/, so a second call starts at once, and a change of
# pyproject.toml installs again.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)

VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps
PIP_QUIETLY := -qq --disable-pip-version-check --no-input --progress-bar off
PIP_INSTALL := -m pip install $(PIP_QUIETLY)

# The wheel is checked in an environment of its own. Sharing one with the editable install would mix two copies: compiled
# numba kernels that pip does not remove make a leftover folder, which then hides the editable package.
WHEEL_VENV := build/wheel-venv
WHEEL_BIN := $(CURDIR)/$(WHEEL_VENV)/bin
# What gangs use of Dask beyond its documented interface is tried with the oldest versions that pyproject.toml allows.
OLDEST_VENV := build/oldest-venv
SOURCES := $(shell find dsgd svm datasets -name '*.py' -o -name '*.html' -o -name '*.css' -o -name '*.js' -o -name py.typed)

# One more than cores: tests wait for deadlines, and for kernels that another process compiles.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(os.cpu_count() + 1)')

SOAK_RUNS ?= 200
SOAK_SEED ?= 0
SOAK_FIRST ?= 0
SOAK_PROCESSES ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo claims test test-all times oracle test-oldest test-pythons mutations soak-simulation soak-svm lint types docs figures bench report-screenshots wheel wheel-with-kernels clean

help: ## show this list
	@echo "make targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(STAMPS)/demo ## run two studies on worker processes: what they found, and reports with pictures in demo/
	@$(BIN)/dsgd study msf --demo --rows 5000 --out demo/
	@$(BIN)/dsgd study speedup --demo --dataset higgs-like --epochs 1 --out demo/speedup/

# The environment of the tests has torch, which the claims on neural networks need.
claims: $(STAMPS)/test ## measure every published figure, in some minutes; a page with verdicts in claims/
	$(BIN)/dsgd claims --out claims/

# One process runs the tests that start clusters, the others all the rest.
test: $(STAMPS)/test ## run the tests in some minutes: what is slow is left out, and variants that others cover
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup --quick -m "not cluster or smoke" $(PYTEST_ARGS)

test-all: $(STAMPS)/test ## run the whole test suite (PYTEST_ARGS="-k ledger" narrows it, here and above)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadgroup $(PYTEST_ARGS)

times: ## time what a newcomer waits for: first fits, the demo, both runs of the tests, with no kernel compiled before
	.ci/run waits

# Old versions warn of what newer ones of their own requirements deprecate.
OLDEST_TESTS ?= tests/jobs $(patsubst %,tests/runtime/test_%.py,dask_internals gang gang_failures recovery out_of_core registry)
test-oldest: $(STAMPS)/oldest ## run the tests of gangs with the oldest Dask, numpy, ... that are supported
	$(OLDEST_VENV)/bin/python -m pytest -W ignore::DeprecationWarning --quick $(OLDEST_TESTS) $(PYTEST_ARGS)

# Their environments lie in build/, too; .ci/pythons.py says which tests, and why these.
test-pythons: $(STAMPS)/pip ## run a telling part of the tests on each supported Python that is found here
	$(BIN)/python .ci/pythons.py $(PYTEST_ARGS)

oracle: $(STAMPS)/test ## keep bits, bytes and seconds of a hundred fits in build/, or compare with those kept
	PYTHONPATH=tests $(BIN)/python tests/oracle.py build/oracle.json

mutations: $(STAMPS)/test ## plant known defects one by one: the tests must find each (MUTATIONS="--quick --only ring")
	$(BIN)/python tests/mutations.py --processes $(TEST_PROCESSES) $(MUTATIONS)

soak-simulation: $(STAMPS)/test ## hurt simulated clusters, fifty a second (SOAK_RUNS=100000 SOAK_SEED=2000)
	PYTHONPATH=tests $(BIN)/python -m simulation $(SOAK_SEED) --runs $(SOAK_RUNS)

soak-svm: $(STAMPS)/test ## draw small hard problems for the SVMs, beside LIBSVM (SOAK_RUNS=100000 SOAK_PROCESSES=2)
	PYTHONPATH=tests $(BIN)/python -m svm_soak --runs $(SOAK_RUNS) --seed $(SOAK_SEED) --first $(SOAK_FIRST) \
		--processes $(SOAK_PROCESSES)

lint: $(STAMPS)/lint ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# Static tools do not see the import hook of an editable install, so they run on the built wheel; and from a neutral
# folder, because ./dsgd without svm/ and datasets/ would hide the installed package.
types: $(STAMPS)/wheel-env ## check types, import contracts and doctests on the built wheel
	@mkdir -p build/neutral
	cd build/neutral && $(WHEEL_BIN)/python -m mypy --config-file $(CURDIR)/pyproject.toml --strict -p dsgd
	cd build/neutral && $(WHEEL_BIN)/lint-imports --config $(CURDIR)/pyproject.toml
	cd build/neutral && $(WHEEL_BIN)/python -P $(CURDIR)/.ci/doctests.py

docs: $(STAMPS)/docs ## build the documentation, warnings are errors
	$(BIN)/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going --jobs 2 -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

figures: $(STAMPS)/test ## draw all figures and tables of the docs from their rows
	$(BIN)/python docs/figures

bench: $(STAMPS)/bench ## run every benchmark in its quick form; rows go to build/benchmarks/
	$(BIN)/python -m benchmarks quick --out build/benchmarks

report-screenshots: $(STAMPS)/test ## look at all that people see, in build/screenshots/ (PAGES="msf tuning" for some)
	$(BIN)/python docs/figures/screenshots.py --out build/screenshots $(PAGES)

wheel: $(if $(KERNELS),wheel-with-kernels,$(STAMPS)/wheel) ## build the wheel into dist/ (KERNELS=1: with compiled kernels)
	@ls -s --block-size=K dist/*.whl

# For processors with AVX2, this Python and this Numba; where one of them is another, kernels are compiled as ever.
wheel-with-kernels: $(STAMPS)/demo
	rm -rf build/kernels build/lib build/bdist.* dist $(STAMPS)/wheel
	NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=+avx2 NUMBA_CACHE_DIR=build/kernels $(BIN)/dsgd warm --all
	mkdir dsgd/kernels/carried && cp build/kernels/dsgd/*.kernel dsgd/kernels/carried/
	$(BIN)/python -m pip wheel $(PIP_QUIETLY) --no-deps -w dist . ; rm -rf dsgd/kernels/carried

clean: ## remove everything make has made, environments included
	rm -rf $(VENV) $(STAMPS) build dist demo claims docs/_build docs/api/generated docs/auto_examples *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find dsgd svm datasets tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +

# ---------------------------------------------------------------------------------------------------- environments

$(VENV)/pyvenv.cfg:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Dependency groups need pip 25.1.
$(STAMPS)/pip: $(VENV)/pyvenv.cfg
	@mkdir -p $(STAMPS)
	$(BIN)/python $(PIP_INSTALL) --upgrade "pip>=25.1"
	@touch $@

$(STAMPS)/demo: pyproject.toml $(STAMPS)/pip
	$(BIN)/python $(PIP_INSTALL) -e ".[study]"
	@touch $@

$(STAMPS)/test: pyproject.toml $(STAMPS)/pip
	$(BIN)/python $(PIP_INSTALL) -e ".[dataframe,study]" --group test
	@touch $@

$(OLDEST_VENV)/pyvenv.cfg: | $(STAMPS)/pip
	$(PYTHON) -m venv $(OLDEST_VENV)

$(STAMPS)/oldest: pyproject.toml .ci/oldest.py $(OLDEST_VENV)/pyvenv.cfg
	$(BIN)/python .ci/oldest.py > build/oldest.txt
	$(OLDEST_VENV)/bin/python $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(OLDEST_VENV)/bin/python $(PIP_INSTALL) -e ".[dataframe,study]" --group test -c build/oldest.txt
	@touch $@

$(STAMPS)/lint: pyproject.toml $(STAMPS)/pip
	$(BIN)/python $(PIP_INSTALL) --group lint
	@touch $@

$(STAMPS)/docs: pyproject.toml $(STAMPS)/pip
	$(BIN)/python $(PIP_INSTALL) -e ".[dataframe,study]" --group docs
	@touch $@

$(STAMPS)/bench: pyproject.toml $(STAMPS)/pip
	$(BIN)/python $(PIP_INSTALL) -e ".[dataframe,study]" --group bench
	@touch $@

# setuptools copies into build/lib and never deletes there: without the rm a module removed from the tree would ship.
$(STAMPS)/wheel: pyproject.toml README.md LICENSE $(SOURCES) | $(STAMPS)/pip
	rm -rf build/lib build/bdist.* dist
	$(BIN)/python -m pip wheel $(PIP_QUIETLY) --no-deps -w dist .
	@touch $@

$(WHEEL_VENV)/pyvenv.cfg: | $(STAMPS)/pip
	$(BIN)/python -m venv $(WHEEL_VENV)

$(STAMPS)/wheel-tools: pyproject.toml $(WHEEL_VENV)/pyvenv.cfg
	$(WHEEL_BIN)/python $(PIP_INSTALL) --upgrade "pip>=25.1"
	$(WHEEL_BIN)/python $(PIP_INSTALL) --group lint
	@touch $@

# The old package goes first, together with the compiled kernels that pip would leave behind.
$(STAMPS)/wheel-env: $(STAMPS)/wheel $(STAMPS)/wheel-tools
	rm -rf $(WHEEL_VENV)/lib/python*/site-packages/dsgd $(WHEEL_VENV)/lib/python*/site-packages/dsgd-*.dist-info
	wheel=$$(ls $(CURDIR)/dist/*.whl) && $(WHEEL_BIN)/python $(PIP_INSTALL) "$$wheel[dataframe,study]"
	@touch $@
