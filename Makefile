# Each target creates .venv and installs what it needs, and again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
BIN := .venv/bin
RUNTIME := .venv/.installed-runtime
DEV := .venv/.installed-dev
PIP_INSTALL := install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt # modules compile when first used
PYTEST := $(BIN)/python -m pytest --quiet --numprocesses auto --dist worksteal
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict # stops at any warning: broken links, pages without a place in the navigation
TORCH := 2.13.0
unexport PYTHONDONTWRITEBYTECODE # container images set it: each of the tests' many processes would compile rbi anew

.PHONY: help demo tour docs test test-slow test-all fuzz check wheel format constraints bench results clean

help:
	@echo "make demo         learn from a recorded mixed-skill population, apply every rule, compare the scores (runs/demo)"
	@echo "make tour         rules, the paper's bandit, a small SPI study, RBI on CartPole, recording a population (runs/tour)"
	@echo "make docs         build the documentation site (site/index.html opens from disk, without a network)"
	@echo "make test         tests without the markers slow and ray (GPU tests are skipped without a GPU)"
	@echo "make test-slow    the slow and Ray tests"
	@echo "make test-all     all tests that can run on this machine"
	@echo "make fuzz         property tests with fresh random seeds and more examples"
	@echo "make check        formatting, lint, types, import layers, doctests, the documentation site (broken links fail)"
	@echo "make wheel        build the wheel, install it into an empty environment and run the README's example there"
	@echo "make format       format the code and apply automatic lint fixes"
	@echo "make constraints  regenerate constraints.txt (UPGRADE=--upgrade for the newest versions)"
	@echo "make bench        measure speed on this machine; JSON goes to benchmarks/results/"
	@echo "make results      regenerate docs/results.md from benchmarks/results/"
	@echo "make clean        remove virtual environments, builds and caches"

$(RUNTIME): pyproject.toml constraints.txt
	@echo "== installing rbi with Atari environments into .venv (a few minutes on a fresh machine)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip $(PIP_INSTALL) --editable '.[atari]'
	@touch $@

$(DEV): pyproject.toml constraints.txt
	@echo "== installing rbi with all extras and the development tools into .venv (a few minutes on a fresh machine)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip $(PIP_INSTALL) --editable '.[dev]'
	@touch $@ $(RUNTIME)

demo: $(RUNTIME)
	@echo "== four scripted players of mixed skill are recorded in Breakout (examples/breakout.py)"
	@rm -rf runs/demo
	@$(BIN)/python examples/breakout.py runs/demo/population
	@echo "== beta and Q from their episodes, every improvement rule on top, all evaluated in the game (rbi offline)"
	@PYTHONPATH=examples $(BIN)/rbi offline runs/demo/population --env breakout:BreakoutPositions-v0 --baselines --evaluations 1 \
	  --episodes 16 --num-envs 128 --out runs/demo/offline
	@echo "== scores, what changes and episodes as one page; open it in a browser (rbi report)"
	@$(BIN)/rbi report runs/demo/offline --out runs/demo/report.html

tour: $(RUNTIME)
	@echo "== every improvement rule on one state"
	@$(BIN)/rbi rules --out runs/tour/rules --overwrite
	@echo "== the two-armed bandit: what one step gains over the behaviour policy (the paper's Figure 1)"
	@$(BIN)/rbi bandit regret --out runs/tour/regret --overwrite
	@echo "== the two-armed bandit: learning curves (Figure 2, a tenth of what rbi bandit learn runs)"
	@$(BIN)/rbi bandit learn --repetitions 1000 --steps 2000 --out runs/tour/learn --overwrite
	@echo "== safe policy improvement with known truth, compared with SPIBB and others (a small rbi spi)"
	@$(BIN)/rbi spi --worlds "random(0.9)" "chicken(0.1)" --sizes 50 200 1000 --repetitions 100 --out runs/tour/spi --overwrite
	@echo "== RBI learns CartPole with actors and a learner on this machine (a short rbi train)"
	@$(BIN)/rbi train --env CartPole-v1 --schedule.updates 4000 --save-snapshots 4 --out runs/tour/train --overwrite
	@echo "== a mixed-skill population of its snapshots, recorded into a store (rbi data record)"
	@$(BIN)/rbi data record runs/tour/train random --population 12 --episodes 120 --out runs/tour/population --overwrite

test: $(DEV)
	@echo "== tests (without slow and Ray tests; make test-all runs those too)"
	@$(PYTEST) -m "not slow and not ray"

test-slow: $(DEV)
	@echo "== slow and Ray tests"
	@$(PYTEST) -m "slow or ray"

test-all: test test-slow

fuzz: $(DEV)
	@echo "== property tests with fresh random seeds"
	@HYPOTHESIS_PROFILE=fuzz $(PYTEST) -m "hypothesis and not slow and not ray"

check: $(DEV)
	@echo "== formatting and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== import layers"
	@$(BIN)/lint-imports
	@echo "== doctests"
	@$(BIN)/python -m pytest --quiet --doctest-modules src --ignore=src/rbi/gpu/kernels.py
	@echo "== documentation site (site/)"
	@$(SITE)

docs: $(DEV)
	@$(SITE)
	@echo "open site/index.html"

wheel:
	@echo "== building the wheel"
	@rm -rf dist .venv-wheel
	@$(PYTHON) -m venv .venv-wheel
	@.venv-wheel/bin/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@echo "== installing it into an empty environment, without extras"
	@.venv-wheel/bin/pip $(PIP_INSTALL) dist/rbi-*.whl
	@echo "== running the README's example, rbi --version and rbi rules there"
	@mkdir dist/run
	@sed -n '/^```python/,/^```/{/^```$$/q;/^```/d;p}' README.md > dist/run/example.py
	@test -s dist/run/example.py
	@cd dist/run && ../../.venv-wheel/bin/python example.py
	@cd dist/run && ../../.venv-wheel/bin/rbi --version && ../../.venv-wheel/bin/rbi rules --out rules

format: $(DEV)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

constraints:
	@echo "== resolving the versions of all dependencies (constraints.txt)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check uv
	@cp constraints.txt constraints.tmp
	@echo "torch==$(TORCH)" | $(BIN)/uv pip compile --quiet --no-config --python-version 3.11 --all-extras --no-header \
	  --no-annotate $(UPGRADE) --output-file constraints.tmp pyproject.toml -
	@{ echo "# The tested versions. Generated by \`make constraints\` (uv pip compile for Python 3.11, all extras); do not edit."; \
	  echo "# torch is pinned in the Makefile; its CUDA packages are left out, since each torch build pins its own."; \
	  grep -v -E '^(#|cuda-|nvidia-|triton==)' constraints.tmp; } > constraints.txt
	@rm constraints.tmp

bench: $(DEV)
	@echo "== speed of the rules (about five minutes)"
	@$(BIN)/python -m benchmarks.rules
	@echo "== speed of the safe-improvement study (about a minute)"
	@$(BIN)/python -m benchmarks.spi --speed
	@echo "== latency of one decision: PyTorch, compiled, ONNX (two minutes)"
	@$(BIN)/python -m benchmarks.latency
	@echo "== speed of the training engine next to Stable-Baselines3 from .venv-peers (about six minutes without a GPU)"
	@test -d .venv-peers || { $(PYTHON) -m venv .venv-peers && .venv-peers/bin/pip install --quiet \
	  --disable-pip-version-check --constraint constraints.txt torch stable-baselines3 ale-py opencv-python-headless box2d; }
	@$(BIN)/python -m benchmarks.engine
	@echo "== the Ray engine with 1 to 8 workers, and a calculation for 1,000 (four minutes)"
	@$(BIN)/python -m benchmarks.ray_scaling
	@echo "== speed and memory of the sampler next to d3rlpy (two minutes)"
	@.venv-peers/bin/python -c "import d3rlpy" 2>/dev/null || { .venv-peers/bin/pip install --quiet \
	  --disable-pip-version-check dataclasses-json structlog gym colorama tqdm scikit-learn h5py && \
	  .venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps d3rlpy==2.8.1; }  # pins an old gymnasium
	@$(BIN)/python -m benchmarks.data
	@echo "== speed of offline learning next to d3rlpy (three minutes)"
	@$(BIN)/python -m benchmarks.offline
	@echo "== lower bounds next to vw-estimators, OBP and SCOPE-RL (twenty minutes)"
	@.venv-peers/bin/python -c "import estimators, obp, scope_rl" 2>/dev/null || { .venv-peers/bin/pip install --quiet \
	  --disable-pip-version-check vw-estimators pandas scikit-learn matplotlib seaborn pyyaml tqdm gym && \
	  .venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps obp==0.4.1 scope-rl==0.2.1; }
	@$(BIN)/python -m benchmarks.coverage_peers
	@echo "== repairs of the human Atari data compared with the truth (ten minutes)"
	@$(BIN)/python -m benchmarks.agc

results: $(DEV)
	@$(BIN)/python -m benchmarks.results_page

clean:
	rm -rf .venv .venv-peers .venv-wheel dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
