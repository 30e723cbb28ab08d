# Each target makes .venv and installs what it needs; nothing is done again while pyproject.toml and constraints.txt
# stay as they are.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: help demo tour test check format bench results clean

help:
	@echo "make demo     the main job on Atari: a crowd is recorded, learned from, improved by every rule and played; runs/demo"
	@echo "make tour     rules, the paper's bandit, a small safe-improvement study, RBI on CartPole, its crowd: in runs/tour"
	@echo "make test     all tests"
	@echo "make check    formatting, lint, types, import directions, doctests"
	@echo "make format   put the code into the house format"
	@echo "make bench    measure speed on this machine; JSON goes to benchmarks/results/"
	@echo "make results  draw docs/results.md from benchmarks/results/"
	@echo "make clean    remove the virtual environment and caches"

$(INSTALLED): pyproject.toml constraints.txt
	@echo "== installing rbi and its tools into .venv (some minutes on a fresh machine)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@echo "== a small crowd of mixed skill plays Freeway (rbi data record)"
	@$(BIN)/rbi data record cross cross random --env ALE/Freeway-v5 --crowd 12 --episodes 12 --manners.epsilon 0.8 \
	  --out runs/demo/crowd --overwrite
	@echo "== beta and Q from its pixels, every improvement step on top, all played beside each other (rbi offline)"
	@$(BIN)/rbi offline runs/demo/crowd --preset quick --peers ppo --points 1 --episodes 12 --max-frames 2000 \
	  --out runs/demo/offline --overwrite

tour: $(INSTALLED)
	@echo "== every improvement rule on one state"
	@$(BIN)/rbi rules --out runs/tour/rules --overwrite
	@echo "== the two-armed bandit: what one step gains over the behaviour policy (the paper's Figure 1)"
	@$(BIN)/rbi bandit regret --out runs/tour/regret --overwrite
	@echo "== the two-armed bandit: learning curves (Figure 2, a tenth of what rbi bandit learn runs)"
	@$(BIN)/rbi bandit learn --repetitions 1000 --steps 2000 --out runs/tour/learn --overwrite
	@echo "== safe improvement where truth is known, beside SPIBB and friends (a small rbi spi)"
	@$(BIN)/rbi spi --worlds "random(0.9)" "chicken(0.1)" --sizes 50 200 1000 --repetitions 100 --out runs/tour/spi --overwrite
	@echo "== iterative RL: RBI learns CartPole, actors and learner on this machine (a short rbi train)"
	@$(BIN)/rbi train --env CartPole-v1 --schedule.updates 4000 --ages 4 --out runs/tour/train --overwrite
	@echo "== a crowd of mixed skill, recorded into a store (rbi data record)"
	@$(BIN)/rbi data record runs/tour/train random --crowd 12 --episodes 120 --out runs/tour/crowd --overwrite

test: $(INSTALLED)
	@echo "== tests"
	@$(BIN)/python -m pytest --quiet --numprocesses auto

check: $(INSTALLED)
	@echo "== formatting and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "== types"
	@$(BIN)/mypy
	@echo "== import directions"
	@$(BIN)/lint-imports
	@echo "== doctests"
	@$(BIN)/python -m pytest --quiet --doctest-modules src --ignore=src/rbi/gpu/kernels.py --ignore=src/rbi/__main__.py

format: $(INSTALLED)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(INSTALLED)
	@echo "== speed of the rules (about five minutes)"
	@$(BIN)/python -m benchmarks.rules
	@echo "== speed of the safe-improvement study (about a minute)"
	@$(BIN)/python -m benchmarks.spi --speed
	@echo "== speed of the training engine (about six minutes without a GPU, with Stable-Baselines3 from .venv-peers)"
	@test -d .venv-peers || { $(PYTHON) -m venv .venv-peers && .venv-peers/bin/pip install --quiet \
	  --disable-pip-version-check --constraint constraints.txt torch stable-baselines3 ale-py opencv-python-headless; }
	@$(BIN)/python -m benchmarks.engine
	@echo "== the Ray engine with 1 to 8 workers, and on paper with 1,000 (four minutes)"
	@$(BIN)/python -m benchmarks.ray_scaling
	@echo "== speed and memory of the sampler, beside d3rlpy (two minutes)"
	@.venv-peers/bin/python -c "import d3rlpy" 2>/dev/null || { .venv-peers/bin/pip install --quiet \
	  --disable-pip-version-check dataclasses-json structlog gym colorama tqdm scikit-learn h5py && \
	  .venv-peers/bin/pip install --quiet --disable-pip-version-check --no-deps d3rlpy==2.8.1; }  # pins an old gymnasium
	@$(BIN)/python -m benchmarks.data
	@echo "== speed of learning from logs, beside d3rlpy (three minutes)"
	@$(BIN)/python -m benchmarks.offline
	@echo "== the repairs of the human data against the truth (ten minutes)"
	@$(BIN)/python -m benchmarks.agc

results: $(INSTALLED)
	@$(BIN)/python -m benchmarks.results_page

clean:
	rm -rf .venv .venv-peers .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
