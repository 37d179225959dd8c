# `make demo` and `make test` need only Python 3.11.4 to 3.13 with venv, git and make; each rule sets up the rest.
# Values come from the command line alone: what the shell exports as PYTHON, SEED or IN is another's. They reach a command through the
# environment, letter for letter: as make's text, $(shell ...) and quotes in them would run.
GIVEN := NAME BASE HEAD SOURCE IN VARIANT SEED TRAIN IMAGE SCENE JOBS ON EXPERIMENT AGAINST MARGIN MEASURE SEEDS SERIES JSON PORT
$(foreach name,$(GIVEN),$(eval override $(name) := $(if $(filter command,$(origin $(name))),$$(value $(name)))))
override PYTHON := $(if $(filter command,$(origin PYTHON)),$(value PYTHON),python3)
export PYTHON $(GIVEN)
UV_VERSION := 0.13.8
# Relative, because a rule cannot name a path with a space, and the checkout's may have one.
VENV := .venv
STAMP := $(VENV)/.installed

# Stages call `python`, which has to be the environment's.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
# The code of this checkout, wherever a stage runs; and no other project's settings.
export PYTHONPATH := $(CURDIR)
unexport $(shell cat pipeline/system/foreign-variables.txt)
# What DVC gives to its stages is for those that it starts itself: a shell inside a stage of another project has it, too.
unexport DVC_ROOT DVC_EXP_NAME DVC_EXP_BASELINE_REV DVC_STAGE
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := 1

# One more than the cores, because some tests wait for a server or for the end of a process.
TEST_PROCESSES := $(shell expr $$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) + 1)

PROCESSES := LAB_PROCESSES="$${JOBS:-$$LAB_PROCESSES}"
NO_IN = test -z "$$IN" || { echo "error: make $@ is about the study itself: leave IN out." >&2; exit 2; }
IN_FOLDER := case "$$IN" in build/*) test ! -f "profiles/$${IN\#build/}.yaml" || mkdir -p "$$IN";; esac; CDPATH= cd -- "$${IN:-.}" 2>/dev/null || { echo "error: IN names a folder, for example build/demo." >&2; exit 2; }

.PHONY: help setup demo study list plan caption classify pretrained export test test-fast lint repro train judge preview verify compare ui sync bench gpu-check lock clean
.DEFAULT_GOAL := help

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## install the locked requirements into .venv (nothing else)

# Programs of a copied or moved environment start another checkout's, so the stamp holds the place.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif
# Of a user without a home that can be written to, as in a container, the cache lies beside what comes from it.
ifneq ($(shell test -w "$$HOME" && echo yes),yes)
export UV_CACHE_DIR ?= $(CURDIR)/build/uv
endif

$(STAMP): requirements.lock pyproject.toml
	@"$$PYTHON" -c 'import sys; sys.exit(not (3, 11, 4) <= sys.version_info[:3] < (3, 14))' || \
		{ echo "$$PYTHON is not Python 3.11.4 to 3.13: name one that is, for example 'make setup PYTHON=python3.12'." >&2; exit 2; }
	@test ! -L $(VENV) || { echo "$(VENV) is a link, and setting up would empty what it leads to: remove the link." >&2; exit 2; }
	@case "$$(pwd -P)" in *%*) echo "MLflow takes no folder whose path has a %: move this one elsewhere." >&2; exit 2; esac
	@test "$$(cat $@ 2>/dev/null)" = "$$(pwd -P)" && $(VENV)/bin/python -m pip --version >/dev/null 2>&1 || "$$PYTHON" -m venv --clear $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --no-user --disable-pip-version-check uv==$(UV_VERSION)
	@$(VENV)/bin/uv pip sync --python $(VENV)/bin/python --quiet --require-hashes requirements.lock || \
		{ echo "Installing requirements.lock failed: see the line above, then run the same command again." >&2; exit 2; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || "$$PYTHON" -m venv --upgrade-deps $(VENV) >/dev/null
	@$(VENV)/bin/uv pip install --python $(VENV)/bin/python --quiet --no-deps --no-build-isolation --editable .
	@$(VENV)/bin/python -c 'import torch'
	@pwd -P > $@

demo: $(STAMP) ## the whole pipeline on scikit-learn's digits, in build/demo (a minute, no network)
	@$(PROCESSES) python -m pipeline.commands.profiles demo

study: $(STAMP) ## a new repository for a study of your own: NAME=../my-study
	@python -m pipeline.commands.study "$$NAME"

preview: $(STAMP) ## real MNIST, few seeds and epochs, in build/preview
	@$(PROCESSES) python -m pipeline.commands.profiles preview

repro: $(STAMP) ## the full study, after a kill too: make train, then dvc repro: [JOBS=processes]
	@$(NO_IN); $(PROCESSES) python -m pipeline.commands.repro

train: $(STAMP) ## only the trainings of make repro, all variants at once: [JOBS=processes] [ON=ray]; of a profile with IN=build/preview
	@test "$$ON" != ray || uv pip install --python $(VENV)/bin/python --quiet --require-hashes -r requirements-cluster.lock
	@$(IN_FOLDER); python -m pipeline.commands.train --jobs="$$JOBS" --on="$$ON"

judge: $(STAMP) ## better or not: VARIANT=name [AGAINST=name] or BASE=rev; [MARGIN=5] [MEASURE=name] [SEEDS=most] [SERIES=name] [JSON=1] [IN=build/demo]
	@$(IN_FOLDER); python -m pipeline.commands.judge --against="$$AGAINST" --base="$$BASE" $${MARGIN:+--margin="$$MARGIN"} \
		--measure="$$MEASURE" $${SEEDS:+--seeds="$$SEEDS"} --series="$$SERIES" $${JSON:+--json} -- "$$VARIANT"; \
		status=$$?; case $$status in [3-7]) ;; *) exit $$status;; esac  # these are answers, which make would call errors

verify: $(STAMP) ## whether the committed results are what the code makes of the stored weights: [VARIANT=name] [SEED=n [TRAIN=1]]
	@$(NO_IN); python -m pipeline.commands.verify --variant="$$VARIANT" --seed="$$SEED" --train="$$TRAIN"

list: $(STAMP) ## the catalogue: variants, experiments and claims
	@$(NO_IN); python -m pipeline.commands.catalogue

plan: $(STAMP) ## what make repro would train, and how long that takes here; of a profile with IN=build/preview
	@$(IN_FOLDER); python -m pipeline.commands.plan

caption: $(STAMP) ## a trained captioner's captions of IMAGE=scene.png or of the test scene SCENE=n: [VARIANT=name] [SEED=n]
	@$(NO_IN); python -m pipeline.commands.caption --image="$$IMAGE" --scene="$$SCENE" --variant="$$VARIANT" --seed="$$SEED"

classify: $(STAMP) ## what trained networks say of a digit, and where they attend: IMAGE=digit.png [VARIANT=name] [SEED=n] [IN=build/demo]
	@image="$$(realpath -- "$$IMAGE" 2>/dev/null || echo "$$IMAGE")"; $(IN_FOLDER); \
		python -m pipeline.commands.classify --image="$$image" --variant="$$VARIANT" --seed="$$SEED"

pretrained: $(STAMP) ## keep VARIANT=name's networks in store/pretrained, for others to start from: [IN=build/fashion]
	@$(IN_FOLDER); python -m pipeline.commands.pretrained --variant="$$VARIANT"

export: $(STAMP) ## an experiment's page as one HTML file, its figures as PDF, its table as CSV and LaTeX: EXPERIMENT=name [IN=build/demo]
	@$(IN_FOLDER); python -m pipeline.commands.export --experiment="$$EXPERIMENT"

compare: $(STAMP) ## what changed between two commits or DVC experiments: BASE=rev [HEAD=rev] [SOURCE=mlflow]
	@python -m pipeline.commands.compare --source="$$SOURCE" --in="$$IN" -- "$$BASE" "$$HEAD"

ui: $(STAMP) ## MLflow's pages on the root's store: [PORT=5000]; on a profile's with IN=build/demo
	@$(IN_FOLDER); exec python -m pipeline.tracking.ui $${PORT:+--port="$$PORT"}

sync: $(STAMP) ## bring the MLflow store up to date from store/, without doubles; a profile's with IN=build/preview
	@$(IN_FOLDER); python -m pipeline.stages.sync

test: $(STAMP) ## all tests but the long ones
	@pytest -n $(TEST_PROCESSES) --dist worksteal

test-fast: $(STAMP) ## the tests that take seconds
	@pytest -n $(TEST_PROCESSES) --dist worksteal -m 'not slow and not long'

lint: $(STAMP) ## ruff and mypy
	@ruff check . && ruff format --check . && mypy

bench: $(STAMP) ## this project beside its peers, and overheads, into benchmarks/results (about 25 minutes on two quiet cores)
	@uv pip install --python $(VENV)/bin/python --quiet --require-hashes -r requirements-bench.lock
	@python -m benchmarks

gpu-check: $(STAMP) ## the tests that need a GPU, on the one that is here (minutes; without one they are skipped)
	@pytest -m cuda -W default

lock: $(STAMP) ## rewrite the locks from pyproject.toml
	@uv pip compile pyproject.toml --extra dev --universal --python-version 3.11.4 --generate-hashes \
		--no-emit-index-url --no-annotate --no-header --quiet --upgrade -o requirements.lock
	@mkdir -p build && for extra in bench cluster; do \
		uv pip compile pyproject.toml --extra dev --extra $$extra --universal --python-version 3.11.4 --generate-hashes \
			--no-emit-index-url --no-annotate --no-header --quiet -c requirements.lock -o build/$$extra.lock && \
		{ echo "-r requirements.lock"; grep -vxFf requirements.lock build/$$extra.lock; } > requirements-$$extra.lock && \
		rm build/$$extra.lock || exit 1; done

clean: ## remove .venv and build/ (the demo's and the preview's results); the study stays
	rm -rf .venv build
