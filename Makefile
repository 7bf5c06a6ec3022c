# make demo is the tour, make test the proof; everything happens inside .venv.
PYTHON ?= python3
VENV ?= .venv
OPENCV ?= headless
BIN = $(VENV)/bin
STAMP = $(VENV)/.setup-stamp

.PHONY: setup demo test lint format bench clean

setup: $(STAMP)

$(STAMP): setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[$(OPENCV),ros,tools,test]'
	touch $@

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy kbr_localization

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build install log
