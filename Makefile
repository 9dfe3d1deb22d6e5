# Headrace. `make demo` and `make test` do all their own set-up in .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := $(VENV)/.installed-peers

# Where Python is told to keep no compiled files, every process that a test starts would compile the
# package anew: that doubles what it takes to start one.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help env demo test lint format bench bench-peers test-browser torture soak lock clean bench-postgres

help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Installed from pinned, hashed requirements; nothing is done while those are unchanged. They name
# every package there is, so pip need not look for others (--no-deps): a new release of one that
# others ask for with an extra would stop it.
$(STAMP): requirements/dev.txt requirements/compiler.txt pyproject.toml hatch_build.py src/headrace/compiled/_kernels.pyx
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) (once, and again when requirements change)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/dev.txt
	@test -n "$$CC" || command -v cc > /dev/null || command -v gcc > /dev/null || command -v clang > /dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/compiler.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c "from headrace.compiled import kernels as k; \
	  k or print('note: the compiled parts could not be built (for that, Python needs its headers);', \
	  'everything works without them, and batches are published slower')"
	@touch $(STAMP)

env: $(STAMP) ## create or update .venv

demo: $(STAMP) ## the tour: real flights through an embedded log
	@$(BIN)/python -m headrace demo

# Four processes for two cores: tests that kill and take over wait a good part of their time.
LANES ?= 4
test: $(STAMP) ## every test (under 20 minutes on two cores)
	$(BIN)/python -m pytest -n $(LANES) --no-loadscope-reorder

test-browser: $(STAMP) ## the console in chromium; fails where there is none
	HEADRACE_BROWSER=1 $(BIN)/python -m pytest tests/node/browser

lint: $(STAMP) ## ruff check, ruff format, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## benchmarks as ratios, against bench/baseline.json; JSON in bench/results
	$(BIN)/python -m bench

$(PEERS): $(STAMP) requirements/peers.txt
	@echo "installing the peers of the benchmarks in $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/peers.txt
	@touch $(PEERS)

bench-peers: $(PEERS) ## the same work on Headrace, NATS JetStream and (if installed) Redis Streams
	$(BIN)/python -m bench.peers

bench-postgres: $(STAMP) ## PostgreSQL with fsync on, against bare inserts; round trips, several processes, retention
	$(BIN)/python -m bench.postgres

torture: $(STAMP) ## writers and members killed and frozen, on both catalogs; every event accounted for
	$(BIN)/python -m tests.torture

FOR ?= 1h
SOAK ?= soak.tsv
soak: $(STAMP) ## all simulations and tortures in turn, FOR=8h; a line per run in SOAK=soak.tsv
	$(BIN)/python -m tests.soak --for $(FOR) --file $(SOAK)

lock: ## recompile the requirement files (needs uv)
	uv pip compile pyproject.toml --extra postgres --extra demo --extra spark --extra java --group dev \
	  --universal --python-version 3.11 --generate-hashes --upgrade \
	  --no-emit-index-url --no-emit-find-links --no-header -q -o requirements/dev.txt
	uv pip compile --group compiler \
	  --universal --python-version 3.11 --generate-hashes --upgrade \
	  --no-emit-index-url --no-emit-find-links --no-header -q -o requirements/compiler.txt
	uv pip compile --group peers -c requirements/dev.txt \
	  --universal --python-version 3.11 --generate-hashes --upgrade \
	  --no-emit-index-url --no-emit-find-links --no-header -q -o requirements/peers.txt

clean: ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
