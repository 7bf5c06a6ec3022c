# make demo is the tour, make test the proof; everything happens inside .venv.
PYTHON ?= python3
VENV ?= .venv
OPENCV ?= headless
BIN = $(VENV)/bin
SOURCES = kbr_localization launch test setup.py
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
	$(BIN)/ament_flake8 --config .flake8-ament.ini $(SOURCES) > $(VENV)/flake8.log || { cat $(VENV)/flake8.log; exit 1; }
	$(BIN)/ament_pep257 $(SOURCES) > $(VENV)/pep257.log || { cat $(VENV)/pep257.log; exit 1; }

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build install log
