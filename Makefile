# Every target works in a fresh clone: what it needs it sets up first. `make` alone prints help.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
STAMP := .venv/.setup-stamp
# Tests without a mark are fast: no torch processes, a few seconds at most.
# What is `extended` runs in `make test-all` only.
LEFT := not extended
FAST = $(LEFT) and not train and not slow and not kube and not node
LONG = $(LEFT) and (train or slow) and not kube and not node
SUPPORT := tests/support:tests/testbed
# An idle worker takes tests over from one that has many left.
SHARED := --dist worksteal
QUICK = $(PYTEST) -n $(PROCESSES) $(SHARED) -m "$(FAST)"
# Folders without long tests, which would take each worker 5 seconds to read.
SHORT := agent/unit cli/unit local_sgd/unit operator sdk wire/unit
WIDELY = $(PYTEST) -n $(WIDE) $(SHARED) -m "$(LONG) and not deadline and not exclusive" \
  $(SHORT:%=--ignore=tests/%) --ignore=tests/integrations $(SLOWEST)
FRAMEWORKS = $(PYTEST) tests/integrations -n $(WIDE) $(SHARED) \
  -m "$(LONG) and not deadline and not exclusive" $(SLOWEST)
# These parts name their folder, since to read all tests takes longer than to start some.
WATCHED = $(PYTEST) tests/recovery -n $(PROCESSES) $(SHARED) \
  -m "$(LONG) and deadline and not exclusive" $(SLOWEST)
ALONE = $(PYTEST) tests/recovery -m "$(LONG) and exclusive" $(SLOWEST)
# The tests of a file share a cluster: they stay in one process.
KUBE = $(PYTEST) tests/operator/process --dist loadfile -m "$(LEFT) and kube" $(SLOWEST)
# Where it cannot be built, its tests are skipped with that reason; with TESTS_NEED_ALL_TOOLS=1 they
# fail.
BESIDE_TOOLS := for one in queue metrics; do nice scripts/cluster_tools.sh --$$one >/dev/null || true; done
# Without the long ones of `make test-node`.
NODE = $(PYTEST) tests/operator/process/nodes -m "node and not slow" $(SLOWEST)
# In a fresh clone pytest compiles every test, and each worker of the first part would do it anew.
READ_FIRST = $(PYTEST) --collect-only -qq -m "$(FAST)" >/dev/null
# Where the time goes.
SLOWEST := --durations=12 --durations-min=10
WORKERS ?= 2
# Three, also on a big machine: these tests watch deadlines of their own processes, and wait for
# half of their time.
PROCESSES ?= 3
# Long tests wait for processes to start and end, and for each other. With three beside those of the
# cluster up to 25 processes wanted two cores, and waits ran into their limits.
WIDE ?= 2
# A line with make's own name for itself would run under `make -n` too.
CHECK_STYLE := $(MAKE) check-style
CHECK_TYPES := $(MAKE) check-types
# Files of the cluster's tests that run beside those, each worker with a cluster of its own: they
# wait for two thirds of their time.
BESIDE ?= 2
SOAK_MINUTES ?= 120
FLASH_SEED ?= $(shell date +%s)
KILLS := PYTHONPATH=$(SUPPORT) $(BIN)/python tests/support/campaigns
KILLS_RECORD := --record build/kills.jsonl
NODES ?= 3

# uv takes interpreters from the machine only, and trusts the certificates that the machine trusts,
# as pip does: behind a company's proxy its own list is not enough.
export UV_PYTHON_DOWNLOADS := never
ifneq ($(wildcard /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt),)
export UV_SYSTEM_CERTS ?= 1
endif

.PHONY: help
help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(STAMP) ## Make .venv with every extra (first time: minutes; then: nothing to do)

$(STAMP): pyproject.toml scripts/setup.sh hatch_build.py worker_agent/holdfast/flash/trainer/copy.c
	@PYTHON='$(PYTHON)' scripts/setup.sh

.PHONY: fmt
fmt: $(STAMP) ## Format and mend what ruff can mend
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: check
check: check-style check-types ## Lint, types, layers, generated code, links

.PHONY: check-types
check-types: $(STAMP)
	$(BIN)/mypy --strict

.PHONY: check-style
check-style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/proto.py --check
	$(BIN)/python scripts/reference.py --check
	$(BIN)/python scripts/state_machine.py --check
	$(BIN)/python scripts/local_sgd_settings.py --check
	$(BIN)/python scripts/metrics.py --check
	$(BIN)/python scripts/dashboard.py --check
	$(BIN)/python scripts/chart.py --check
	$(BIN)/python scripts/links.py
	scripts/buf_lint.sh

.PHONY: proto
proto: $(STAMP) ## Generate the wire's Python code from its .proto files
	$(BIN)/python scripts/proto.py

.PHONY: manifests
manifests: cluster-tools ## Write what follows from the CRD and the chart
	$(BIN)/python scripts/reference.py
	$(BIN)/python scripts/state_machine.py
	$(BIN)/python scripts/local_sgd_settings.py
	$(BIN)/python scripts/metrics.py
	$(BIN)/python scripts/dashboard.py
	$(BIN)/python scripts/chart.py

.PHONY: cluster-tools
cluster-tools: $(STAMP) # Build what a test cluster is made of (first time: minutes; then: nothing)
	@scripts/cluster_tools.sh >/dev/null

.PHONY: cluster
cluster: cluster-tools $(if $(REAL),node-tools) ## Run a real Kubernetes cluster with NODES (3) whose pods are processes; REAL=1: with real nodes
	@PYTHONPATH=$(SUPPORT) $(BIN)/python -m cluster --nodes $(NODES) $(if $(REAL),--real)

.PHONY: node-tools
node-tools: $(STAMP) # Build what real nodes are made of, and the product's image (first time: 10 minutes; a changed product: 1)
	@scripts/cluster_tools.sh --nodes >/dev/null
	@scripts/node_image.sh >/dev/null
	@scripts/cluster_tools.sh --policies >/dev/null

# Each part runs whatever the parts before it found: one run names all that fails. The types take a
# minute of one core: they are checked beside the fast part, and said at the end. The cluster's tools
# are built from the start, at a low priority, and its tests run beside the wide ones, a file at a
# time: they wait for two thirds of their time. Those on real nodes follow there; where real nodes
# cannot be built, they are skipped with the reason. Those of frameworks follow them, since the wide
# ones take longer than the cluster's. Nothing runs beside the parts that watch deadlines. The last
# part repeats the others' outcomes, and says where the time went and what was left out.
.PHONY: test
test: $(STAMP) ## Check, then run the tests (38 minutes on two quick cores, 80 on slow ones; says where they went)
	mkdir -p build; rm -f build/*-phase.*; failed=0; trap 'for one in $$(jobs -p); do pkill -P $$one; kill $$one; done 2>/dev/null || true' EXIT; \
	(trap - INT; for one in cluster_tools.sh "cluster_tools.sh --queue" "cluster_tools.sh --metrics" node_image.sh "cluster_tools.sh --nodes"; do nice setsid -w scripts/$$one || true; done) >/dev/null & nodes=$$!; \
	(trap - INT; exec nice $(READ_FIRST)) & reading=$$!; \
	(trap - INT; $(CHECK_TYPES) >build/types.log 2>&1) & types=$$!; \
	$(CHECK_STYLE) || exit 1; wait $$reading || true; \
	$(QUICK) --durations=12 --durations-min=5 --phase-write=build/fast-phase.json || failed=1; \
	wait $$types || failed=1; \
	(trap - INT; wrong=0; nice scripts/cluster_tools.sh >/dev/null || wrong=1; $(BESIDE_TOOLS); $(KUBE) -n $(BESIDE) \
	  --phase-write=build/kube-phase.json >build/kube-phase.log 2>&1 || wrong=1; \
	  while kill -0 $$nodes 2>/dev/null; do sleep 1; done; \
	  $(NODE) --phase-write=build/node-phase.json >build/node-phase.log 2>&1 || wrong=1; \
	  nice -n 5 $(FRAMEWORKS) --phase-write=build/frameworks-phase.json >build/frameworks-phase.log 2>&1 || wrong=1; \
	  exit $$wrong) & kube=$$!; \
	nice -n 5 $(WIDELY) --phase-write=build/wide-phase.json || failed=1; \
	wait $$kube || failed=1; cat build/{kube,node,frameworks}-phase.log || failed=1; \
	$(WATCHED) --phase-write=build/watched-phase.json || failed=1; \
	$(ALONE) $(foreach one,fast watched wide kube node frameworks,--phase-read=build/$(one)-phase.json) || failed=1; \
	cat build/types.log; exit $$failed

.PHONY: test-all
test-all: ## Run those too whose faults shorter tests find: benchmarks, more seeds, more values (2 hours)
	MATRIX_WHOLE=1 $(MAKE) test LEFT='(extended or not extended)'

.PHONY: coverage
coverage: $(STAMP) ## Measure which decisions the fast tests reach (twice as long as test-fast)
	$(PYTEST) -n $(WORKERS) -m "$(FAST)" --cov

.PHONY: test-kube
test-kube: cluster-tools ## Test the operator on a real Kubernetes control plane (11 minutes)
	@$(BESIDE_TOOLS)
	$(KUBE) -n $(PROCESSES)

.PHONY: test-node
test-node: node-tools ## Test jobs on real nodes: kubelet, containerd, the image (as root; 15 minutes)
	$(PYTEST) tests/operator/process/nodes -m node $(SLOWEST)

.PHONY: test-matrix
test-matrix: $(STAMP) ## Run every pair of layouts of DeepSpeed and Megatron, and Megatron's own pretrain() (`make test` takes some; 50 minutes)
	MATRIX_WHOLE=1 $(PYTEST) tests/integrations -n $(WORKERS) -m "(train or slow) and not kube and not node" $(SLOWEST)

.PHONY: test-fast
test-fast: $(STAMP) ## Run the fast tests only (3 minutes)
	$(QUICK)

.PHONY: test-planted
test-planted: cluster-tools ## Plant each fault of a list into a copy of the tree: its tests must fail (10 minutes)
	PYTHONPATH=$(SUPPORT) $(BIN)/python -m planted_faults.plant --processes $(WORKERS) \
	  $(if $(ONLY),--only '$(ONLY)') $(if $(COMPONENT),--component '$(COMPONENT)') \
	  $(if $(RESUME),--resume) $(if $(UNPLANTED),--unplanted) $(if $(PUBLISH),--publish)

.PHONY: soak
soak: $(STAMP) ## Kill checkpoints 2,340 times and replicas 500 times, then simulate the control plane for SOAK_MINUTES (120)
	rm -f build/kills.jsonl
	$(KILLS)/flash_kills.py --seed $(FLASH_SEED) --kills 700 $(KILLS_RECORD)
	$(KILLS)/flash_kills.py --seed $(FLASH_SEED) --kills 400 --files $(KILLS_RECORD)
	$(KILLS)/flash_kills.py --seed $(FLASH_SEED) --kills 400 --held $(KILLS_RECORD)
	$(KILLS)/whole_job_kills.py --seed $(FLASH_SEED) --kills 300 --overlap $(KILLS_RECORD)
	$(KILLS)/whole_job_kills.py --seed $(FLASH_SEED)1 --kills 200 --files $(KILLS_RECORD)
	for stage in 1 2 3; do \
	  $(KILLS)/whole_job_kills.py --seed $(FLASH_SEED)$$stage --kills 40 --parallel zero$$stage $(KILLS_RECORD); \
	done
	$(KILLS)/whole_job_kills.py --seed $(FLASH_SEED)2 --kills 100 --parallel megatron --overlap $(KILLS_RECORD)
	$(KILLS)/whole_job_kills.py --seed $(FLASH_SEED)3 --kills 120 --parallel megatron-turns $(KILLS_RECORD)
	$(KILLS)/replica_kills.py --seed $(FLASH_SEED) --kills 500 $(KILLS_RECORD)
	$(KILLS)/kill_records.py build/kills.jsonl
	PYTHONPATH=$(SUPPORT) $(BIN)/python -m campaigns.soak --minutes $(SOAK_MINUTES) \
	  --processes $(WORKERS) $(if $(SOAK_SEED),--first $(SOAK_SEED))

.PHONY: demo
demo: $(STAMP) ## Train the example on 2 local nodes, kill a worker and a node, watch it recover
	@$(BIN)/python -m holdfast_cli.demo

.PHONY: bench-recovery
bench-recovery: $(STAMP) ## Measure recovery beside torchrun and DLRover (long; wants a quiet machine)
	$(BIN)/python -m bench.recovery

.PHONY: bench-load
bench-load: $(STAMP) ## Measure the master under 100 to 10,000 agents, beside DLRover's (20 minutes)
	$(BIN)/python -m bench.load

.PHONY: bench-metrics
bench-metrics: $(STAMP) ## Measure what metrics cost the master of 3,000 agents (15 minutes)
	$(BIN)/python -m bench.load.metrics

.PHONY: bench-ledger
bench-ledger: $(STAMP) ## Measure what 10,000 readers of shards cost a master (10 minutes)
	$(BIN)/python -m bench.ledger

.PHONY: bench-overhead
bench-overhead: $(STAMP) ## Measure what agent, master and SDK add to a step, beside torchrun
	$(BIN)/python -m bench.overhead

.PHONY: bench-start
bench-start: $(STAMP) ## Measure how soon a script starts, beside torchrun (10 minutes)
	$(BIN)/python -m bench.start

.PHONY: bench-health
bench-health: $(STAMP) ## Judge stragglers on seeded traces, beside the rules of others (5 minutes)
	$(BIN)/python -m bench.health

.PHONY: bench-preflight
bench-preflight: $(STAMP) ## Check pretended and real nodes, a bad one among them (30 minutes)
	PYTHONPATH=$(SUPPORT) $(BIN)/python -m bench.preflight

.PHONY: bench-flash
bench-flash: $(STAMP) ## Measure how long a checkpoint stops training, beside torch and DLRover (18 minutes)
	$(BIN)/python -m bench.flash

.PHONY: bench-universal
bench-universal: $(STAMP) ## Measure saves and loads of DeepSpeed's and Megatron's state, beside their own (1 hour)
	$(BIN)/python -m bench.universal

.PHONY: bench-local-sgd
bench-local-sgd: $(STAMP) ## Measure local SGD: bytes, slow links and replicas, losses, elastic replicas (1 hour; root for links)
	$(BIN)/python -m bench.local_sgd

.PHONY: bench-replicas
bench-replicas: $(STAMP) ## Measure replicas that nobody restarts, beside torchrun, torchft and a restart (2 hours)
	$(BIN)/python -m bench.replicas

.PHONY: soak-real
soak-real: $(STAMP) ## Train under 200 random faults on real processes; nothing lost, nothing left
	$(BIN)/python -m bench.soak --publish

.PHONY: bench-cluster
bench-cluster: cluster-tools ## Measure the operator on a real control plane (as root; 20 minutes)
	PYTHONPATH=$(SUPPORT) $(BIN)/python -m bench.cluster --publish

.PHONY: bench-scale
bench-scale: cluster-tools ## Measure the operator with 500 and 2,000 jobs, 30,000 pods (1 hour of a quiet machine, 8 GB)
	PYTHONPATH=$(SUPPORT) $(BIN)/python -m bench.scale

.PHONY: wheel
wheel: $(STAMP) ## Build the wheel into dist/
	$(BIN)/uv build --wheel --out-dir dist

.PHONY: images
images: $(STAMP) ## Build the images of operator and workers with buildah (as root; BASE=... for another base than Debian's packages)
	@BASE='$(BASE)' RUNTIME_BASE='$(RUNTIME_BASE)' WORKER_BASE='$(WORKER_BASE)' TORCH='$(TORCH)' TAG='$(TAG)' scripts/images.sh

# Sorted out for every Python and platform, so that one list serves every base. torch follows the worker's.
PIN := $(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-annotate --custom-compile-command 'make image-pins'

.PHONY: image-pins
image-pins: $(STAMP) ## Choose anew which versions of libraries the images have
	$(PIN) --extra operator --extra master --extra traces -o images/operator.txt
	$(PIN) --extra agent --extra master --extra cli -o images/worker.txt
	$(PIN) --extra train --constraints images/worker.txt -o images/torch.txt

.PHONY: clean
clean: ## Remove what builds, tests and tools left; .venv stays
	rm -rf build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache \
	  .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +
