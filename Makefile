# Needs Python 3.10 or newer and make; everything else is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark test test-full matrix nightly bench simulation soak site format-file release lint format servers clean

help: ## list what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort | expand -t 12

.venv/installed: .venv/installed-dev
	@touch $@

# One environment; each target installs the dependency group that it needs.
.venv/installed-%: pyproject.toml
	@echo "Installing celery_delayq and the group $* into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check 'pip>=25.1'
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable . --group '$*'
	@touch $@

demo: .venv/installed-demo ## departure reminders of a real day of flights, in a bit more than a minute; DEMO_ARGS="--broker cluster" or rabbitmq
	@$(BIN)/python -m celery_delayq.embedded.find >/dev/null 2>&1 || .ci/servers redis-server
	@case "$(DEMO_ARGS)" in *rabbitmq*) .ci/servers rabbitmq-server ;; esac
	$(BIN)/python -m example_project $(DEMO_ARGS)

demo-spark: .venv/installed-demo-spark ## a year of flights through Spark into the queue, one day of it run by workers; needs Java 17
	@$(BIN)/python -m celery_delayq.embedded.find >/dev/null 2>&1 && { [ -n "$$JAVA_HOME" ] || command -v java >/dev/null; } || .ci/servers redis-server openjdk-17-jre-headless
	$(BIN)/python -m example_project.spark $(DEMO_ARGS)

test: .venv/installed servers ## the tests for every change, 8 minutes: one Redis, no RabbitMQ, Spark, PostgreSQL or faults
	$(BIN)/python -m tests.run short

test-full: .venv/installed servers ## the tests marked full, 25 minutes: faults, RabbitMQ, a Redis Cluster, Spark, further pools
	$(BIN)/python -m tests.run full $(TEST_ARGS)

matrix: .venv/installed servers ## unit, Lua, contract and conformance tests on the oldest versions
	$(BIN)/python -m tests.matrix $(MATRIX_ARGS)

nightly: .venv/installed servers ## what the above leave out: further cases, the second Redis, eight more combinations of versions, RabbitMQ 4
	@.ci/debian 13 || echo "The servers of Debian 13 are left out"
	@.ci/debian testing || echo "Python 3.14 of Debian testing is left out"
	$(BIN)/python -m tests.run nightly $(TEST_ARGS); tests=$$?; $(BIN)/python -m tests.matrix --all $(MATRIX_ARGS) && exit $$tests

bench: .venv/installed ## this package beside stock Celery, same run, same Redis
	$(BIN)/python -m tests.benchmarks --json benchmarks.json --figures

simulation: .venv/installed ## fleets of dispatchers in virtual time, the tables of docs/scaling.md
	$(BIN)/python -m tests.simulation $(SIMULATION_ARGS)

soak: .venv/installed servers ## faults in their long form, 30 minutes; their table goes into docs/fault-tests.md
	$(BIN)/python -m tests.soak --markdown $(SOAK_ARGS)

site: .venv/installed-site ## the documentation as a site, in build/site; each warning is an error
	$(BIN)/python -m tests.site $(SITE_ARGS)

format-file: .venv/installed ## write tests/format/VERSION.json, what this version stores in Redis, after a change of the format and for a release
	DELAYQ_WRITE_FORMAT=1 $(BIN)/python -m pytest -q tests/integration/store/test_stored_format.py -k what_this_version

release: .venv/installed servers ## build and check both packages; tags the version if PLACEHOLDERS is empty
	$(BIN)/python -m tests.release

lint: .venv/installed ## ruff, mypy --strict, the rooms (import-linter) and the words
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy celery_delayq example_project examples/fastapi tests
	$(BIN)/lint-imports
	.ci/words

format: .venv/installed ## let ruff format and sort
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

servers: ## install what the tests start where apt may: redis-server, rabbitmq-server, chromium and others
	@.ci/servers

clean: ## remove what the other targets made
	rm -rf .venv .matrix .upstream build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
