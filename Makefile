# Everything starts from nothing: each command that needs it first makes sure that .venv is there and up to date.

BIN := .venv/bin
MINUTES ?= 10
# Two more than there are processors: most tests wait, for servers and for clients that wait.
WORKERS ?= $(shell expr $$(nproc) + 2)
# Each worker has its tests from one part of the list, as long as there are such: so it starts fewer servers.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal
# What starts no server is tested while the hot files are compiled, which keeps one processor busy and no other: as much of
# it as takes as long as that.
ALONE := $(addprefix tests/,amqp broker fuzz $(addprefix simulation/,broker partitioned cluster queue))
WHICH :=
ON_SPARK_TOO := tests/bench/test_pipeline_read_bench.py
ARCHIVE := .venv/spark.jsa
# A hundred thousand messages are sent once in each direction: on compiled files.
MANY := tests/interop/test_many_messages.py
# What is compiled looks at types that Python does not: each part of it is used at least once.
COMPILED := $(addprefix tests/,amqp interop $(addprefix client/pairing/,failover/test_failover.py \
	failover/test_fragment_outages.py backlog/test_parking.py syphon/test_syphon.py syphon/test_syphon_to_fragments.py) \
	pipeline/source/test_columns.py pipeline/sink/test_rows_as_messages.py)

# With the pinned setuptools and mypy. Wheels are made from the source distribution: nothing left in build/ gets into them.
BUILD := $(BIN)/uv build --quiet --no-build-isolation --no-config --python $(BIN)/python --out-dir dist

# Tests start hundreds of processes, and each would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help linted alone served spark setup compile wheel run test lint format bench pipeline partitioned syphon client outage takeover deferral depth entities indexes connections soak oldest demo lock clean

help: ## list the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: ## make .venv with all that is pinned (the commands that need it do this first)
	@tools/setup

compile: ## set up, with twinbus as its users have it: its hot files compiled
	@tools/setup --compiled

wheel: setup ## build dist/: the wheel for this platform, compiled; a wheel of plain Python for all; the source distribution
	rm -rf dist
	$(BUILD) --sdist
	TWINBUS_COMPILE=0 $(BUILD) --wheel dist/*.tar.gz
	TWINBUS_COMPILE=1 $(BUILD) --wheel dist/*.tar.gz
	@ls -sh dist

run: ## serve a pair of namespaces, contoso and contoso-backup, and print their connection strings
	@tools/run

test: setup ## check style, types and import rules, then run all tests; the engine's and the pair's also on compiled files
	@$(MAKE) --no-print-directory -j2 --output-sync=target compile linted alone $(ARCHIVE)
	@$(MAKE) --no-print-directory served
	@$(MAKE) --no-print-directory spark WHICH="(not cluster or brief) and not campaign"
	$(PYTEST) -o pythonpath=. -m "not interpreted" $(COMPILED)

lint: setup ## check style, types and import rules
	@$(MAKE) --no-print-directory linted

# Without the set-up: beside `compile`, which has one of its own.
linted:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-logo

alone:
	$(BIN)/pytest $(ALONE)

served:
	$(PYTEST) -m "not campaign" $(addprefix --ignore=,$(ALONE) tests/pipeline $(ON_SPARK_TOO) $(MANY))

# Two Sparks, each of which keeps one processor busy, and files of tests for whichever is free: the first jobs of a Java take
# several times as long as later ones, so fewer Javas are quicker. A test here may start more, on a machine that may be small.
spark: setup ## run the tests of jobs on Spark alone, and those that need a cluster of it
	$(BIN)/pytest -q -n 2 --dist loadfile -o timeout=600 $(if $(WHICH),-m "$(WHICH)") tests/pipeline $(ON_SPARK_TOO)

# Depends on nothing that make knows of: one that does not fit is of no use, and does no harm.
$(ARCHIVE):
	PYTHONPATH=src $(BIN)/python tools/archive_spark.py $@ 2>/dev/null

format: setup ## put the code in the one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: compile ## measure engine, queues, syphon, client and pipeline beside others: RabbitMQ 4 (as root; minutes at first), Azure's SDK
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.speed
	$(BIN)/python -m bench.partitioned
	$(BIN)/python -m bench.syphon
	$(BIN)/python -m bench.sdk
	$(BIN)/python -m bench.paired
	@$(MAKE) --no-print-directory pipeline

pipeline: compile ## measure the pipeline: Spark beside our client and the in-process syphon, a year of usage priced
	$(BIN)/python -m bench.pipeline_read
	$(BIN)/python -m bench.pipeline_write
	$(BIN)/python -m bench.pipeline_syphon
	$(BIN)/python -m bench.costs

partitioned: compile ## measure partitioned queues beside plain ones, and by numbers of fragments and processes
	$(BIN)/python -m bench.partitioned

syphon: compile ## measure the syphon beside RabbitMQ 4's shovel (as root; minutes at first)
	$(BIN)/python -m bench.syphon

client: compile ## measure our client beside Azure's SDK, and a paired sender beside an unpaired one
	$(BIN)/python -m bench.sdk
	$(BIN)/python -m bench.paired

depth: compile ## measure five million waiting messages (takes about 22 GB of disk at times)
	$(BIN)/python -m bench.depth

entities: compile ## measure a namespace with ten thousand entities, a hundred of them partitioned
	$(BIN)/python -m bench.entities --workers 1 4

indexes: compile ## measure a million sessions, scheduled, expiring and deferred messages, five million ids (half an hour)
	$(BIN)/python -m bench.indexes

connections: compile ## measure five thousand idle connections
	$(BIN)/python -m bench.connections

outage: compile ## measure what an application sees of an outage of the primary
	$(BIN)/python -m bench.outage

takeover: compile ## measure how soon another host of the syphon takes over from one that is silent, killed or closed
	$(BIN)/python -m bench.takeover

deferral: compile ## measure what it costs the syphon to set half of a backlog aside
	$(BIN)/python -m bench.deferral

soak: compile ## try mutated input, attacks, simulated faults, kills, power cuts, slow disks, outages; the first three for MINUTES minutes (10)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)
	$(BIN)/python -m tests.campaigns.attacks --minutes $(MINUTES)
	$(BIN)/python -m tests.campaigns.sdk_concurrency --runs 20
	$(BIN)/python -m tests.mutations
	$(PYTEST) -m campaign tests/bench tests/campaigns/crashes
	$(BIN)/python -m tests.simulation.broker --minutes $(MINUTES)
	$(BIN)/python -m tests.simulation.partitioned --runs 3000
	$(BIN)/python -m tests.simulation.cluster --runs 3000
	$(BIN)/python -m tests.simulation.pair --outages 100000
	$(BIN)/python -m tests.simulation.queue --steps 100000
	$(BIN)/python -m tests.simulation.queue --machine --steps 100000
	$(BIN)/python -m tests.campaigns.crashes --kills 50
	$(BIN)/python -m tests.campaigns.crashes --cuts 50
	$(BIN)/python -m tests.campaigns.crashes --cuts 50 --failing-syncs
	$(BIN)/python -m tests.campaigns.crashes --features --kills 50
	$(BIN)/python -m tests.campaigns.crashes --features --cuts 50
	$(BIN)/python -m tests.campaigns.crashes --features --cuts 50 --failing-syncs
	$(BIN)/python -m tests.campaigns.crashes --transfers --kills 100
	$(BIN)/python -m tests.campaigns.crashes --transfers --cuts 100
	$(BIN)/python -m tests.campaigns.crashes --transfers --cuts 50 --failing-syncs
	$(BIN)/python -m tests.campaigns.crashes --slow-disk
	$(BIN)/python -m tests.client.pairing.syphon.idle_syphon --hours 720
	$(BIN)/python -m tests.campaigns.outages --outages 100
	$(BIN)/python -m tests.campaigns.outages --outages 100 --partitioned
	$(BIN)/python -m tests.pipeline.audit.outage_campaign --outages 30
	$(BIN)/python -m tests.pipeline.audit.outage_campaign --outages 30 --partitioned
	$(BIN)/python -m tests.pipeline.audit.million_messages
	$(BIN)/python -m tests.campaigns.cluster_faults --outages 100
	$(BIN)/python -m tests.campaigns.cluster_faults --outages 100 --sessions
	@$(MAKE) --no-print-directory oldest wheel
	$(BIN)/python -m tests.install

oldest: setup ## run the core tests with the oldest versions that pyproject.toml allows (some minutes)
	$(BIN)/python -m tests.install.oldest

demo: compile ## show an outage from end to end: parked, drained by Spark, audited and priced (two or three minutes)
	@$(BIN)/python tools/demo.py

lock: setup ## pin the newest versions in requirements.lock and tests/sdk_js/package-lock.json
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --generate-hashes \
		--no-config --quiet --custom-compile-command "make lock" --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --constraint requirements.lock --universal --python-version 3.11 --generate-hashes \
		--no-config --quiet --no-annotate --custom-compile-command "make lock" --output-file requirements-run.lock
	rm -f tests/sdk_js/package-lock.json
	cd tests/sdk_js && npm install --package-lock-only --save-dev --save-exact @azure/service-bus@latest

clean: ## remove all that these commands made
	rm -rf .venv .venv-run .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist src/twinbus.egg-info \
		tests/sdk_js/node_modules
	find src tests bench tools -name __pycache__ -prune -exec rm -rf {} +
