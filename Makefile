# Every target sets up by itself what it needs: Python 3.11 and make are enough.
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
RUN     := $(BIN)/python -m experiment_kit
MEMBERS := packages/attention-core packages/experiment-kit apps/sequence

# what an experiment is; an empty one falls back to the app's default
DATA     ?= japanese_vowels
BACKBONE ?= uea
METHOD   ?= plain
RECIPE   ?=
PROFILE  ?=
PROTOCOL ?= validation
SEED     ?= 0
SEEDS    ?= 0,1,2
TABLE    ?= agf-table-1
OUT      ?= docs/results
JOBS     ?= 0
DEVICE   ?= cpu
ARGS     ?=
DATA_DIR ?=
export DATA_DIR

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench tensorboard report list table sequence data-uea clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  make sequence DATA= BACKBONE= METHOD= RECIPE= PROFILE= SEED= ARGS= DATA_DIR="
	@echo "  make table TABLE= PROFILE= PROTOCOL= SEEDS= JOBS= ARGS= DATA_DIR="

setup: $(VENV)/.done  ## make the virtual environment; does nothing where nothing changed

$(VENV)/.done: constraints.txt pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev \
		"./packages/attention-core[timm]" $(addprefix ./,$(filter-out %/attention-core,$(MEMBERS)))
	$(BIN)/python -m pip install --quiet --no-deps $(addprefix -e ,$(MEMBERS))
	@touch $@

demo: setup  ## train Transformer, + GFSA and AGF on JapaneseVowels; table and report beside the paper
	$(RUN) table agf-table-1 --profile=small --seeds=[0,1,2] --columns=[japanese_vowels] \
		--rows=[transformer,gfsa,agf] --out=runs/results --jobs=$(JOBS)

test: setup  ## run the tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto $(ARGS)

check: setup  ## lint, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## measure speed and memory as ratios (DEVICE=cuda for a GPU)
	$(BIN)/python benchmarks/run.py --device $(DEVICE) $(ARGS)

list: setup  ## list experiments and tables, and whether their data is here
	$(RUN) list

sequence: setup  ## train one model of the sequence app
	$(RUN) run sequence --data=$(DATA) --backbone=$(BACKBONE) --method=$(METHOD) \
		--recipe="$(RECIPE)" --profile="$(PROFILE)" --seed=$(SEED) --args="$(ARGS)"

table: setup  ## make the missing cells of a table of the papers, then print and publish it
	$(RUN) table $(TABLE) --profile=$(or $(PROFILE),paper) --protocol=$(PROTOCOL) --seeds=[$(SEEDS)] \
		--out=$(OUT) --jobs=$(JOBS) $(ARGS)

report: override ARGS += --train=false
report: table  ## render a table and its HTML page from the runs that are here

data-uea: setup  ## download the UEA archive into DATA_DIR
	$(BIN)/python -m attention_sequence.download

tensorboard: setup  ## watch the runs
	$(BIN)/tensorboard --logdir runs

clean:  ## remove the environment and caches; runs and results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
