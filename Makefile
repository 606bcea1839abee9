# The targets a user types. Everything runs in .venv, which the first of them makes.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help quickstart test check slow bench figures clean

help:
	@echo 'make quickstart   the paper in small: behaviour, batch, BCQ and DDPG on it, a figure and a table'
	@echo 'make test         all fast tests'
	@echo 'make check        ruff and mypy'
	@echo 'make slow         the slow tests: minutes of learning'
	@echo 'make bench        how fast everything is, beside plain code and d3rlpy, in one run'
	@echo 'make figures      the figures of the README, from results/reference/'
	@echo 'make clean        remove the environments, caches and the quickstart'

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed (make PYTHON=python3.11 …); this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: requirements.txt $(VENV)/.created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.checks: requirements-dev.txt requirements-ray.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

# The commands below are those a user types; make prints each before it runs. What was stopped goes
# on where it was: a stage that is finished leaves a mark, the last one takes the marks away.
MAIN = $(BIN)/python continuous_BCQ/main.py --env Pendulum-v1 --output_dir quickstart
MARKS := $(addprefix quickstart/.,begun behaviour batch DDPG BCQ)

quickstart/.begun: $(VENV)/.installed
	@rm -rf quickstart && mkdir quickstart && touch $@

quickstart/.behaviour: quickstart/.begun
	$(MAIN) --train_behavioral --gaussian_std 0.1 --max_timesteps 6000 --start_timesteps 2000 --eval_freq 1000
	@touch $@

quickstart/.batch: quickstart/.behaviour
	$(MAIN) --generate_buffer --buffer_name Imitation --gaussian_std 0 --rand_action_p 0 --max_timesteps 10000
	@touch $@

quickstart/.DDPG: quickstart/.batch
	$(MAIN) --buffer_name Imitation --algorithm DDPG --max_timesteps 3000 --eval_freq 500
	@touch $@

quickstart/.BCQ: quickstart/.DDPG
	$(MAIN) --buffer_name Imitation --max_timesteps 3000 --eval_freq 500
	@touch $@

quickstart: quickstart/.BCQ
	$(BIN)/python plot.py quickstart/results/*_Imitation_Pendulum-v1_0.npy --output quickstart/quickstart.png
	@rm $(MARKS)
	@echo
	@echo 'Both learners saw the same 10,000 transitions of one good policy and nothing else.'
	@echo 'Next:  open quickstart/quickstart.png'
	@echo '       $(BIN)/python continuous_BCQ/main.py --help          every setting, with its symbol'
	@echo '       continuous_BCQ/README.md                            the tasks of the paper on MuJoCo'
	@echo '       make test                                           all fast tests'

test: $(VENV)/.checks
	$(BIN)/python -m pytest

slow: $(VENV)/.checks
	$(BIN)/python -m pytest -m slow

# Folders hold modules of the same names, so mypy sees one folder at a time.
check: $(VENV)/.checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy common datasets plotting sweeps plot.py import_dataset.py reproduce.py tests benchmarks examples
	cd continuous_BCQ && MYPYPATH=.. ../$(BIN)/mypy --config-file ../pyproject.toml .
	cd discrete_BCQ && MYPYPATH=.. ../$(BIN)/mypy --config-file ../pyproject.toml .
	cd tabular_BCQ && MYPYPATH=.. ../$(BIN)/mypy --config-file ../pyproject.toml .

# d3rlpy pins an old gymnasium and so has an environment of its own.
.venv-d3rlpy/.installed: benchmarks/requirements-d3rlpy.txt
	$(PYTHON) -m venv .venv-d3rlpy
	.venv-d3rlpy/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

bench: $(VENV)/.checks .venv-d3rlpy/.installed
	$(BIN)/python benchmarks/speed.py --d3rlpy-python .venv-d3rlpy/bin/python

figures: $(VENV)/.installed
	$(BIN)/python plot.py results/reference/*_Imitation_Pendulum-v1_0.npy --output results/reference/quickstart.png
	$(BIN)/python plot.py results/reference/*_Hopper-v4_*.npy --output results/reference/hopper.png
	$(BIN)/python plot.py results/reference/icml/*.npy --output results/reference/icml/batches.png
	$(BIN)/python plot.py --figure values results/reference/icml/*.npy --output results/reference/icml/values.png
	$(BIN)/python plot.py results/reference/claims/*_Imperfect_*.npy --output results/reference/claims/imperfect.png
	$(BIN)/python plot.py results/reference/claims/*_Imitation_*.npy --output results/reference/claims/imitation.png
	$(BIN)/python plot.py results/reference/claims/BCQ_Imperfect_Hopper-v4_*.npy results/reference/precision/*/*.npy --output results/reference/precision/precision.png
	$(BIN)/python plot.py results/reference/discrete/*.npy --output results/reference/discrete/discrete.png
	$(BIN)/python plot.py --figure values results/reference/discrete/*.npy --output results/reference/discrete/values.png
	$(BIN)/python plot.py results/reference/discrete/minatar/*.npy --output results/reference/discrete/minatar/minatar.png
	$(BIN)/python plot.py results/reference/discrete/pong/*.npy --output results/reference/discrete/pong/pong.png
	$(BIN)/python tabular_BCQ/figures.py results/reference/tabular/*.npy

clean:
	rm -rf quickstart .venv .venv-d3rlpy .pytest_cache .ruff_cache .mypy_cache *_BCQ/.mypy_cache
