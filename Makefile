# Every target creates its own virtual environment; no target needs root.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-guest test-release coverage test-oldest test-newest test-servers million chaos chaos-short explore simulate mutants screenshots reference docs check lock bench bench-scripts bench-queue bench-delay bench-worker bench-leases bench-observe bench-flow bench-schedules bench-publish bench-peers figures test-django workflow-check release-check dist api bench-scaling campaign soak compose-check clean

VENV := .venv
OLDEST := .venv-oldest
DJANGO := .venv-django
BENCH := .venv-bench
BIN := $(VENV)/bin
LOCKED := requirements
INSTALL := pyproject.toml scripts/environment $(LOCKED)/bootstrap.txt
# Groups of tests that only `make test-all` runs, but for two: thorough ones are for `make test-release`, and release for `make release-check`.
GROUPS := matrix or browser or installs
# Tests on each of the other servers; for a release, all: make test-servers STORE_TESTS="tests/proof/test_model.py tests/queue tests/delay tests/store tests/lua"
STORE_TESTS := tests/proof/test_model.py tests/store/test_schema.py tests/celery/message/test_schema.py tests/queue/test_queue.py tests/delay/test_delay_queue.py tests/store/test_full.py tests/celery/test_full_redis.py
# Tests on the oldest versions; for a release, all: make test-oldest OLDEST_TESTS="tests/queue tests/delay tests/celery tests/contrib tests/testing"
OLDEST_TESTS := tests/queue/test_queue.py tests/contrib/django/test_outbox.py tests/celery/publish/test_capture.py tests/celery/dispatch/test_dispatcher.py \
	tests/celery/monitor/test_reports.py tests/celery/monitor/test_own_requests.py \
	tests/celery/leases/test_task_leases.py::TestLostConnection::test_repeats_no_task_that_a_child_has_not_confirmed
# Tests on Django 6, if the other ones have run on an older Django; make test-all runs all of tests/contrib/django.
DJANGO_TESTS := tests/contrib/django/test_task_backend.py tests/contrib/django/test_own_suite.py tests/docs/test_tutorial.py::test_the_project_with_the_tasks_of_django_works
# System packages that tests need; `make test` and `make test-all` install them if they are allowed to.
PARTS := curl openssl libfaketime rabbitmq-server postgresql mariadb-server redis-server prometheus
ALL_PARTS := $(PARTS) chromium
# Failed tests run once more, alone; those that pass then are listed in this file and at the end.
export REDIS_QUEUE_TEST_FLAKY := $(CURDIR)/build/flaky.txt
# Commands get no other variables of this machine: PYTHONUNBUFFERED, LC_ALL or COLUMNS would hide what fails on a new one. The first line is what
# every machine has, the second says how to reach package indexes, the third where they are, the last what users choose.
KEPT := HOME PATH PWD SHELL USER LOGNAME TMPDIR LD_LIBRARY_PATH PYENV_ROOT XDG_% MAKE% MFLAGS \
	%_proxy %_PROXY NETRC SSL_CERT_% REQUESTS_CA_BUNDLE CURL_CA_BUNDLE PIP_CERT PIP_CLIENT_CERT PIP_PROXY PIP_TRUSTED_HOST UV_SYSTEM_CERTS UV_INSECURE_HOST \
	PIP_CONFIG_FILE PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_FIND_LINKS UV_CONFIG_FILE UV_INDEX% UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS \
	CI PYTHON SOURCES REDIS_QUEUE_TEST_% REDIS_QUEUE_WRITE_GOLDEN
unexport $(foreach name,$(.VARIABLES),$(if $(filter environment%,$(origin $(name))),$(filter-out $(KEPT),$(name))))
# Like pip, uv accepts the certificates of the system, including that of a company proxy.
export UV_SYSTEM_CERTS ?= true
PROCESSES := 4
SEEDS := 0:1000
IN_PARALLEL := -m tests.support.rerun -n $(PROCESSES) --dist worksteal -q
PYTEST := $(BIN)/python $(IN_PARALLEL)
TEST_PARTS := $(BIN)/python -m tests.support.parts

help: ## show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

setup: $(VENV)/.ready ## create the virtual environment for development

$(VENV)/.ready: $(LOCKED)/dev.txt $(INSTALL)
	scripts/environment $(VENV) dev
	@touch $@

$(VENV)/.demo: $(LOCKED)/demo.txt $(INSTALL)
	@echo "installing what the demo needs into $(VENV), which takes about a minute"
	scripts/environment $(VENV) demo
	@touch $@

demo: $(VENV)/.demo ## run the orders example end to end: a consumer is killed and a worker restarted half way
	@$(BIN)/python -m examples.orders $(ARGS)

test: setup ## run the tests on one Redis and the newest versions; for some: ARGS=tests/store
	@$(TEST_PARTS) install $(PARTS)
	@mkdir -p build && : > $$REDIS_QUEUE_TEST_FLAKY
	$(PYTEST) -m "not ($(GROUPS) or thorough or release)" $(ARGS)
	@$(if $(ARGS),true,$(MAKE) --no-print-directory test-django)
	@$(TEST_PARTS) report $(PARTS)

test-all: setup ## run the rest: four servers, Cluster, Sentinel, oldest versions, browser, installed wheels
	@$(TEST_PARTS) install $(ALL_PARTS)
	@mkdir -p build && : > $$REDIS_QUEUE_TEST_FLAKY
	$(PYTEST) -m "($(GROUPS)) and not thorough and not release" $(ARGS)
	$(MAKE) --no-print-directory test-servers test-oldest
	$(MAKE) --no-print-directory test-guest ARGS="--quick -n 6 canvas"
	@cat $$REDIS_QUEUE_TEST_FLAKY
	@$(TEST_PARTS) report $(ALL_PARTS)

test-guest: setup ## run the tests of Celery and kombu themselves, on stock and with DurableTasks; some: ARGS='--quick canvas'
	$(BIN)/python -m tests.guest $(ARGS)

test-release: setup ## run the tests that take long and that others nearly repeat: more pools, brokers and faults
	@$(TEST_PARTS) install $(ALL_PARTS)
	@mkdir -p build && : > $$REDIS_QUEUE_TEST_FLAKY
	$(PYTEST) -m "thorough and not release" $(ARGS)
	@$(TEST_PARTS) report $(ALL_PARTS)

dist: setup ## build the source distribution and the wheel into dist/
	@rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist

release-check: dist ## build what is published, check it, and try it on each Python with each extra, oldest and newest versions
	@$(TEST_PARTS) install redis-server
	@mkdir -p build && rm -f build/sbom.cdx.json && : > $$REDIS_QUEUE_TEST_FLAKY
	REDIS_QUEUE_TEST_DIST=$(CURDIR)/dist $(PYTEST) -vv -m release $(ARGS) tests/packaging
	@sha256sum dist/* $$(find build -maxdepth 1 -name sbom.cdx.json)

coverage: setup ## run the tests of the newest versions and report uncovered lines
	$(PYTEST) --cov --cov-report=term $(ARGS)

test-servers: setup ## run the tests of the store on the servers of wheels, Redis 6.2, 8.2 and Valkey 9, except the server of `test`
	@set -e; for server in $$($(BIN)/python -m tests.support.binaries); do \
		echo "== $$server"; REDIS_QUEUE_TEST_SERVER=$$server $(PYTEST) $(STORE_TESTS); done

test-newest: ## run tests of workers on the newest celery, kombu and redis-py of PyPI, pre-releases among them
	.ci/newest $(ARGS)

test-oldest: $(OLDEST)/.ready ## run tests on the oldest supported celery, redis-py, Django, Flask and pytest
	@# Old redis-py and kombu leave closing sockets to the garbage collector.
	$(OLDEST)/bin/python $(IN_PARALLEL) -W "ignore:unclosed:ResourceWarning" $(OLDEST_TESTS)

test-django: ## run the tests of Django's tasks on Django 6, if this machine has Python 3.12 or later
	@$(BIN)/python -c 'import django.tasks' 2>/dev/null && exit; \
	scripts/environment $(DJANGO) dev 3.12 && exec $(DJANGO)/bin/python $(IN_PARALLEL) $(DJANGO_TESTS); \
	code=$$?; [ $$code = 3 ] && [ -z "$$CI" ] && echo "Skipped, for want of Python 3.12 or later: the tests on Django 6" || exit $$code

$(OLDEST)/.ready: $(LOCKED)/oldest.txt $(INSTALL)
	scripts/environment $(OLDEST) oldest
	@touch $@

million: setup ## test the pages of the dashboard with a million entries in each state
	REDIS_QUEUE_TEST_MANY=1000000 $(BIN)/python -m pytest -q tests/web/test_speed.py

chaos-short: setup ## kill processes between any two commands, and their servers; check their histories
	$(BIN)/python -m tests.chaos short $(ARGS)

chaos: $(BENCH)/.ready setup ## the same with 100,000 messages and more, then Celery, RQ and Dramatiq under the same kills
	$(BIN)/python -m tests.chaos long $(ARGS)
	$(BENCH)/bin/python -m benchmarks.kills

screenshots: setup ## create the images of docs/images again
	$(BIN)/python -m tests.web.browser.screenshots

simulate: setup ## run the real code on a seeded scheduler with simulated faults: SEEDS=0:1000, ARGS='--world celery'
	$(BIN)/python -m proof.simulate --seeds $(or $(SEEDS),0:1000) --jobs 2 $(ARGS)

explore: setup ## visit the states that all interleavings of the scripts reach; TRANSITIONS=100000000 for a release
	$(BIN)/python -m proof.explore --transitions $(or $(TRANSITIONS),1000000) $(ARGS)

mutants: setup ## put a fault into the code, one by one: each must be found, by tests, exploration or simulation; ARGS='clocks ids'
	$(BIN)/python -m tests.chaos mutants $(ARGS)

check: setup compose-check workflow-check docs ## format, lint, types, layers, shape, lock files, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/shape.py
	$(BIN)/python -m docs.generated --check
	$(BIN)/python -m pytest -q tests/packaging/test_requirements.py tests/packaging/test_checkout.py

reference: setup ## generate the parts of docs/reference that come from the code
	$(BIN)/python -m docs.generated

api: setup ## accept the public names and signatures as they are, in docs/reference/api.txt
	$(BIN)/python -m docs.generated --api

docs: setup ## build the documentation into build/docs; a broken link or reference is an error
	$(BIN)/sphinx-build -E -W --keep-going -q -d build/doctrees docs build/docs

compose-check: setup ## validate docker-compose.yml and examples/compose against the compose schema
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml examples/compose/*.yml

workflow-check: setup ## validate and scan what GitHub and Read the Docs run
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.readthedocs .readthedocs.yaml
	$(BIN)/zizmor --offline --quiet --no-progress .github

lock: setup ## pin the dependencies of pyproject.toml in requirements/; ARGS=--upgrade for the newest versions
	scripts/lock $(ARGS)

bench: bench-scripts bench-queue bench-delay bench-worker bench-leases ## run the benchmarks: scripts, and against kombu and Celery

bench-scripts: setup ## measure how long each script blocks Redis, with 500 records of 240 kB and of 200 bytes
	$(BIN)/python -m benchmarks.scripts $(ARGS)

bench-queue: setup ## RedisQueue against kombu's SimpleQueue, ratios of one run
	$(BIN)/python -m benchmarks.queue $(ARGS)

bench-delay: $(BENCH)/.ready ## DurableTasks against Celery's native countdown, ratios of one run; ARGS=--small for less
	$(BENCH)/bin/python -m benchmarks.delay $(ARGS)

bench-worker: setup ## a worker with leases and with atomic fetch against a stock worker: CPU, rate, wake-ups, latency; ARGS=--small for less
	$(BIN)/python -m benchmarks.worker $(ARGS)

bench-observe: setup ## what the reports of workers cost: CPU, commands, and bytes after a simulated week
	$(BIN)/python -m benchmarks.observe $(ARGS)

bench-flow: setup ## what flow control costs, and how exact limits, rates and turns are; ARGS=--small for less
	$(BIN)/python -m benchmarks.flow $(ARGS)

bench-schedules: setup ## periodic tasks from the store against stock beat: lateness, idle commands, a burst, a failover; ARGS=--small for less
	$(BIN)/python -m benchmarks.schedules $(ARGS)

bench-publish: $(BENCH)/.ready ## sending tasks, one by one and in groups: Celery alone, with DurableTasks, potatoq; ARGS=--small for less
	$(BENCH)/bin/python -m benchmarks.publish $(ARGS)

bench-scaling: setup ## the cost of many entries in one Redis, and of tasks on 1, 2 and 4 Redis; ARGS=--shares or --regions for these alone
	$(BIN)/python -m benchmarks.scaling $(ARGS)

bench-leases: setup ## messages lost when consumers are killed: stock, with leases, with atomic fetch
	$(BIN)/python -m benchmarks.leases $(ARGS)

campaign: setup ## real workers under kills and faults, in pieces of 200,000 tasks with a seed each: ARGS='--seed 100 --pieces 15'
	$(BIN)/python -m benchmarks.kills.campaign $(ARGS)

soak: setup ## a day of an app in minutes, then lost connections: memory, descriptors and connections must not grow
	$(BIN)/python -m benchmarks.soak $(ARGS)

figures: setup $(BENCH)/.ready ## measure the figures of docs/figures.md again, one benchmark after the other; ARGS=queue for some
	$(BIN)/python -m docs.generated --measure $(ARGS)

bench-peers: $(BENCH)/.ready ## delayed tasks of other libraries against Celery's native countdown
	$(BENCH)/bin/python -m benchmarks.peers $(ARGS)

$(BENCH)/.ready: $(LOCKED)/bench.txt $(INSTALL)
	scripts/environment $(BENCH) bench
	@touch $@

clean: ## remove the virtual environments and caches
	rm -rf $(VENV) $(OLDEST) $(DJANGO) $(BENCH) .venv-newest build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .coverage* .hypothesis
