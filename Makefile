# All commands work in a fresh clone: those that need .venv first create or update it.

BIN := .venv/bin
MINUTES ?= 10
# Two more than the number of processors: most tests spend their time waiting for servers and clients.
WORKERS ?= $(shell expr $$(nproc) + 2)
# Each pytest worker gets a contiguous part of the tests, so that it starts fewer servers.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist worksteal
# Tests that start no server. They run while the hot files are compiled, which uses one processor only, and take about as
# long as the compilation.
ALONE := $(addprefix tests/,amqp broker fuzz $(addprefix simulation/,broker partitioned cluster queue))
WHICH :=
ON_SPARK_TOO := tests/bench/test_pipeline_read_bench.py
ARCHIVE := .venv/spark.jsa
# Sends a hundred thousand messages in each direction: runs only once, with the compiled files.
MANY := tests/interop/test_many_messages.py
# Compiled code checks types that Python does not check: these tests use every compiled part at least once.
COMPILED := $(addprefix tests/,amqp interop $(addprefix client/pairing/,failover/test_failover.py \
	failover/test_fragment_outages.py backlog/test_parking.py syphon/test_syphon.py syphon/test_syphon_to_fragments.py) \
	pipeline/source/test_columns.py pipeline/sink/test_rows_as_messages.py)

# Uses the pinned setuptools and mypy. Wheels are built from the source distribution, so that no old file in build/ gets in.
BUILD := $(BIN)/uv build --quiet --no-build-isolation --no-config --python $(BIN)/python --out-dir dist

# Tests start hundreds of processes; without bytecode files, each would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help linted alone served spark setup compile wheel run test lint format bench pipeline partitioned syphon client outage takeover deferral depth entities indexes connections soak oldest demo lock clean

help: ## list all commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 10

setup: ## create .venv with the pinned packages (commands that need .venv do this first)
	@tools/setup

compile: ## create .venv with compiled hot files, as in an installed twinbus
	@tools/setup --compiled

wheel: setup ## build dist/: a compiled wheel for this platform, a pure Python wheel, the source distribution
	rm -rf dist
	$(BUILD) --sdist
	TWINBUS_COMPILE=0 $(BUILD) --wheel dist/*.tar.gz
	TWINBUS_COMPILE=1 $(BUILD) --wheel dist/*.tar.gz
	@ls -sh dist

run: ## serve a pair of namespaces, contoso and contoso-backup, and print their connection strings
	@tools/run

test: setup ## run make lint and all tests; the tests of the engine and the pair also with compiled files
	@$(MAKE) --no-print-directory -j2 --output-sync=target compile linted alone $(ARCHIVE)
	@$(MAKE) --no-print-directory served
	@$(MAKE) --no-print-directory spark WHICH="(not cluster or brief) and not campaign"
	$(PYTEST) -o pythonpath=. -m "not interpreted" $(COMPILED)

lint: setup ## check style, types and import rules
	@$(MAKE) --no-print-directory linted

# Does not depend on `setup`, because it runs in parallel with `compile`, which includes it.
linted:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-logo

alone:
	$(BIN)/pytest $(ALONE)

served:
	$(PYTEST) -m "not campaign" $(addprefix --ignore=,$(ALONE) tests/pipeline $(ON_SPARK_TOO) $(MANY))

# Two pytest workers, each with one Spark that uses one processor. The first jobs of a JVM take several times as long as
# later ones, so fewer JVMs are faster. Some tests start more of them, and the machine may be small.
spark: setup ## run only the tests of Spark jobs, including those that need a Spark cluster
	$(BIN)/pytest -q -n 2 --dist loadfile -o timeout=600 $(if $(WHICH),-m "$(WHICH)") tests/pipeline $(ON_SPARK_TOO)

# Has no prerequisites: Java ignores an archive that does not match the installed Java or Spark.
$(ARCHIVE):
	PYTHONPATH=src $(BIN)/python tools/archive_spark.py $@ 2>/dev/null

format: setup ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: compile ## benchmark engine, queues, syphon, client and pipeline; compare with RabbitMQ 4 (needs root; first run takes minutes) and Azure's SDK
	$(BIN)/python -m bench.engine
	$(BIN)/python -m bench.speed
	$(BIN)/python -m bench.partitioned
	$(BIN)/python -m bench.syphon
	$(BIN)/python -m bench.sdk
	$(BIN)/python -m bench.paired
	@$(MAKE) --no-print-directory pipeline

pipeline: compile ## benchmark the pipeline: Spark compared with the client and the in-process syphon; costs of a year of usage
	$(BIN)/python -m bench.pipeline_read
	$(BIN)/python -m bench.pipeline_write
	$(BIN)/python -m bench.pipeline_syphon
	$(BIN)/python -m bench.costs

partitioned: compile ## benchmark partitioned queues: compared with plain queues, and by number of fragments and processes
	$(BIN)/python -m bench.partitioned

syphon: compile ## benchmark the syphon, compared with RabbitMQ 4's shovel (needs root; first run takes minutes)
	$(BIN)/python -m bench.syphon

client: compile ## benchmark the client, compared with Azure's SDK, and a paired sender, compared with an unpaired one
	$(BIN)/python -m bench.sdk
	$(BIN)/python -m bench.paired

depth: compile ## benchmark a queue with five million messages (needs up to 22 GB of disk)
	$(BIN)/python -m bench.depth

entities: compile ## benchmark a namespace with ten thousand entities, a hundred of them partitioned
	$(BIN)/python -m bench.entities --workers 1 4

indexes: compile ## benchmark a million sessions, scheduled, expiring and deferred messages, five million ids (half an hour)
	$(BIN)/python -m bench.indexes

connections: compile ## benchmark five thousand idle connections
	$(BIN)/python -m bench.connections

outage: compile ## measure the effects of an outage of the primary on an application
	$(BIN)/python -m bench.outage

takeover: compile ## measure how fast a host of the syphon takes over from one that is silent, killed or closed
	$(BIN)/python -m bench.takeover

deferral: compile ## measure the cost of deferring half of a backlog in the syphon
	$(BIN)/python -m bench.deferral

soak: compile ## run all campaigns: fuzzing, attacks, simulations, kills, power cuts, slow disks, outages; the first three for MINUTES each (10)
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

oldest: setup ## run the core tests with the oldest versions that pyproject.toml allows (a few minutes)
	$(BIN)/python -m tests.install.oldest

demo: compile ## show an outage from start to end: parking, draining with Spark, audit, costs (two to three minutes)
	@$(BIN)/python tools/demo.py

lock: setup ## pin the newest versions in requirements.lock and tests/sdk_js/package-lock.json
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --generate-hashes \
		--no-config --quiet --custom-compile-command "make lock" --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --constraint requirements.lock --universal --python-version 3.11 --generate-hashes \
		--no-config --quiet --no-annotate --custom-compile-command "make lock" --output-file requirements-run.lock
	rm -f tests/sdk_js/package-lock.json
	cd tests/sdk_js && npm install --package-lock-only --save-dev --save-exact @azure/service-bus@latest

clean: ## remove all generated files
	rm -rf .venv .venv-run .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist src/twinbus.egg-info \
		tests/sdk_js/node_modules
	find src tests bench tools -name __pycache__ -prune -exec rm -rf {} +
