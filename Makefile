# edgekit. `make help` lists the targets.
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help flash-device torture demo test test-rabbitmq check fix wheel bench-probe bench-serve bench-pauses bench-fleet soak-fleet soak-rollout soak-arm64 bench-select bench-repeat bench-build bench-prune bench-console soak picture clean

help: ## this list
	@grep -E '^[a-z.][a-z.-]*:.*##' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## /\1|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

# Two stamps in one environment: the demo needs less than the tests.
.venv/.demo: pyproject.toml
	@.ci/venv .venv $(PYTHON) -e '.[demo]'
	@touch $@

.venv/.dev: pyproject.toml
	@.ci/venv .venv $(PYTHON) -e '.[test,lint]'
	@touch $@ .venv/.demo

.venv: .venv/.dev ## the development environment
.PHONY: .venv

.venv-tflite/.ready: pyproject.toml
	@.ci/venv .venv-tflite $(PYTHON) -e '.[tflite]' pytest pytest-timeout hypothesis
	@touch $@

.venv-tflite: .venv-tflite/.ready ## the environment of the older tflite-runtime (numpy < 2, Python 3.10 or 3.11)
.PHONY: .venv-tflite

.venv-peers/.ready: pyproject.toml
	@.ci/venv .venv-peers $(PYTHON) -e '.[onnx,litert,openvino,build]' nncf ai-edge-quantizer mlserver
	@touch $@

.venv-peers: .venv-peers/.ready ## what the benchmarks compare with: NNCF, ai-edge-quantizer, MLServer
.PHONY: .venv-peers

# onnx2tf wants Python 3.12 or newer, which need not be the one that edgekit runs on.
.venv-convert/.ready: pyproject.toml
	@for p in "$(PYTHON)" python3.14 python3.13 python3.12 $(HOME)/.pyenv/versions/3.1[2-9]*/bin/python; do \
	  if "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then \
	    exec .ci/venv .venv-convert "$$p" onnx2tf ai-edge-quantizer ai-edge-litert; fi; done; \
	  echo "edgekit: converting to LiteRT needs Python 3.12 or newer, none was found; name one: make .venv-convert PYTHON=python3.12" >&2; exit 1
	@touch $@

.venv-convert: .venv-convert/.ready ## what converts ONNX to LiteRT: onnx2tf, ai-edge-quantizer (Python 3.12 or newer)
.PHONY: .venv-convert

demo: .venv/.demo ## the main job on this machine: probe, build, bench, select, serve, watch
	@$(BIN)/edgekit demo

# Bytecode is kept whatever the environment says: else each of the programs that tests start compiles everything anew.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/.dev ## the whole test suite
	@$(BIN)/python -m pytest -q -n 5 --dist worksteal -m "not alone and not rabbitmq"
	@$(BIN)/python -m pytest -q -m alone

test-rabbitmq: .venv/.dev ## nothing is lost while one of three RabbitMQ nodes is killed (Debian: rabbitmq-server)
	@$(BIN)/python -m pytest -q tests/test_rabbitmq.py

check: .venv/.dev ## format, lint, types, import contracts, sizes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python .ci/sizes.py

fix: .venv/.dev ## format and mend what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench-probe: .venv/.dev ## what `edgekit probe` and `--help` cost beside an empty Python; fails over 0.15 s
	@$(BIN)/python tests/bench/bench_probe.py

bench-serve: .venv/.dev ## the daemon's overhead over a bare session.run, side by side
	@$(BIN)/python tests/bench/bench_serve.py

bench-pauses: .venv/.dev ## what a thread for every core gains after a pause, kept off its caller's core and not
	@$(BIN)/python tests/bench/bench_pauses.py

bench-build: .venv/.dev ## the builder beside other quantisers; MODELS="digits minilm" for some, RESULTS=folder to go on later
	@$(BIN)/python tests/bench/bench_build.py $(MODELS) $(if $(RESULTS),--results $(RESULTS))

bench-prune: .venv/.dev ## what pruning to 2:4 keeps and gains beside the standard and INT8
	@$(BIN)/python tests/bench/bench_prune.py

torture: .venv/.dev ## cut the power at every write of an update (POINTS=N: at most so many of each kind)
	@PYTHONPATH=. $(BIN)/python tests/torture/torture.py $(if $(POINTS),--points $(POINTS) --updates 10 --restarts 20)

bench-fleet: .venv/.dev ## 10,000 simulated devices, a broker and a collector; FLEET="--devices 1000 --seconds 30" for less
	@$(BIN)/python tests/bench/bench_fleet.py $(FLEET)

soak-fleet: .venv/.dev ## kills, a cut cable, garbage and examples in full numbers: nothing accepted is lost or doubled
	@EDGEKIT_KILLS=200 $(BIN)/python -m pytest -q -s --timeout=1800 tests/test_fleet_kills.py
	@EDGEKIT_LINK_DOWN_S=120 $(BIN)/python -m pytest -q -s --timeout=600 tests/test_link_down.py
	@EDGEKIT_FUZZ=100000 $(BIN)/python -m pytest -q -s --timeout=1200 tests/test_garbage.py
	@EDGEKIT_SAMPLES=10000000 $(BIN)/python -m pytest -q --timeout=1200 tests/test_histogram.py -k fleets_percentiles
	@EDGEKIT_EXAMPLES=1000 $(BIN)/python -m pytest -q -n 2 --timeout=1800 tests/test_fleet.py tests/test_messages.py tests/test_histogram.py

soak-rollout: .venv/.dev ## a rollout over four real devices: slowed by 30 % stops, equal reaches all, the operator is killed
	@EDGEKIT_ROLLOUT=1 $(BIN)/python -m pytest -q -s tests/test_rollout_real.py

soak-arm64: .venv/.dev ## as root: a release for aarch64 installs itself and answers in an emulated arm64 Debian
	@tests/torture/arm64.sh $(FOLDER)

soak: soak-fleet soak-rollout torture bench-repeat ## the full counts of what CI runs in small; an hour or more
	@$(BIN)/python tests/bench/soak_serve.py

bench-console: .venv/.dev ## the console over 10,000 devices: first paint, key to paint, processor, memory
	@$(BIN)/python -m tests.bench.bench_console

flash-device: .venv/.demo ## TARGET=user@host or local:FOLDER, MODEL=digits: install, measure, keep or go back
	@$(BIN)/edgekit provision $(TARGET) $(if $(MODEL),--model $(MODEL)) $(FLAGS)

bench-select: .venv/.dev ## the search of `select` against an exhaustive sweep over real models
	@$(BIN)/python tests/bench/bench_select.py

bench-repeat: .venv/.dev ## a difference of 5 % decided ten times, with and without a busy neighbour
	@$(BIN)/python tests/bench/bench_repeat.py

picture: .venv/.dev ## docs/report.png: a real HTML report of ocr-detector, measured here and seen in Chromium
	@$(BIN)/python tests/bench/picture.py

wheel: .venv/.dev ## dist/edgekit_deploy-*.whl
	@$(BIN)/python -m pip wheel --disable-pip-version-check -q --no-deps -w dist .
	@ls -1 dist/*.whl | tail -n 1

clean: ## remove environments and build output
	rm -rf .venv .venv-* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
