# Every target makes its own virtual environment; nothing needs root.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-oldest test-servers chaos-short mutants check bench bench-queue bench-delay bench-leases bench-peers compose-check clean

VENV := .venv
OLDEST := .venv-oldest
BENCH := .venv-bench
BIN := $(VENV)/bin
STORE_TESTS := tests/test_queue.py tests/test_delay.py tests/consumer tests/store tests/lua
OLDEST_TESTS := tests/test_queue.py tests/test_delay.py tests/consumer tests/celery
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## make the virtual environment with everything for development

$(VENV)/.ready: pyproject.toml scripts/environment
	scripts/environment $(VENV) dev servers
	@touch $@

$(VENV)/.demo: pyproject.toml scripts/environment
	scripts/environment $(VENV) demo
	@touch $@

demo: $(VENV)/.demo ## run the main job end to end, with a consumer killed and a worker restarted half way
	@$(BIN)/python -m examples.orders $(ARGS)

test: setup ## run all tests: the default Redis, Cluster, Sentinel, RabbitMQ, then four servers, then oldest versions
	scripts/need-redis
	$(PYTEST) --cov --cov-report=term $(ARGS)
	$(MAKE) --no-print-directory test-servers test-oldest

test-servers: setup ## run the store's tests on those of Redis 6.2, 7.0, 8.2 and Valkey 9 that `test` does not use
	@set -e; for server in $$($(BIN)/python -m tests.support.matrix); do \
		echo "== $$server"; REDIS_QUEUE_TEST_SERVER=$$server $(PYTEST) -q $(STORE_TESTS); done

test-oldest: $(OLDEST)/.ready ## run the store's and Celery's tests on the oldest supported celery and redis-py
	@# Old redis-py and kombu leave sockets to the garbage collector.
	$(OLDEST)/bin/python -m pytest -n 2 --dist worksteal -q -W "ignore:unclosed:ResourceWarning" $(OLDEST_TESTS)

$(OLDEST)/.ready: pyproject.toml scripts/environment
	scripts/environment $(OLDEST) oldest
	@touch $@

chaos-short: setup ## kill processes between any two Redis commands, three seeds, and check what they did
	$(BIN)/python -m tests.fault short $(ARGS)

mutants: setup ## the same with a fault in a script: each has to be found
	$(BIN)/python -m tests.fault mutants $(ARGS)

check: setup compose-check ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

compose-check: setup ## validate docker-compose.yml against the compose schema
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml

bench: bench-queue bench-delay bench-leases ## run the benchmarks against kombu and Celery

bench-queue: setup ## RedisQueue against kombu's SimpleQueue, ratios of one run
	$(BIN)/python -m benchmarks.queue $(ARGS)

bench-delay: $(BENCH)/.ready ## DelayedTasks against Celery's native countdown, ratios of one run; ARGS=--small for less
	$(BENCH)/bin/python -m benchmarks.delay $(ARGS)

bench-leases: setup ## TaskLeases against stock workers: cost, and what is lost when consumers are killed
	$(BIN)/python -m benchmarks.leases $(ARGS)

bench-peers: $(BENCH)/.ready ## delayed tasks of other libraries against Celery's native countdown
	$(BENCH)/bin/python -m benchmarks.peers $(ARGS)

$(BENCH)/.ready: pyproject.toml scripts/environment
	scripts/environment $(BENCH) bench
	@touch $@

clean: ## remove the virtual environments and caches
	rm -rf $(VENV) $(OLDEST) $(BENCH) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage* .hypothesis
