# make demo is the tour, make test the proof; everything happens inside of .venv.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= headless,ros,tools,test
JOBS ?= -1
BIN = $(VENV)/bin
STAMP = $(VENV)/.setup-stamp
SOURCES = kbr_localization launch test setup.py $(wildcard benchmarks experiments)

PYTEST = $(BIN)/python -m pytest -q
# the modules of the tests in three processes: tests over DDS wait as long as they compute
PARALLEL = -n 3 --dist loadfile --no-loadscope-reorder

.PHONY: setup demo test quick slow lint format bench reproduce docs clean

setup: $(STAMP)

$(STAMP): setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[$(EXTRAS)]'
	touch $@

demo: setup
	$(BIN)/kbr demo --out demo

# A test that failed runs once more when the machine is idle: one that fails again is a failure.
test: setup
	$(PYTEST) $(PARALLEL) --durations 10 -m 'not slow' || \
	  { echo 'Failed tests run once more, one after the other'; \
	    $(PYTEST) -m 'not slow' --last-failed --lfnf=none; }

# what starts no node
quick: setup
	$(PYTEST) -x $(PARALLEL) -m 'not slow and not ros'

# rendering, tuning, experiments, memory: one after the other
slow: setup
	$(PYTEST) -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy kbr_localization $(wildcard benchmarks experiments)
	$(BIN)/ament_flake8 $(SOURCES) > $(VENV)/flake8.log \
	  || { cat $(VENV)/flake8.log; exit 1; }
	$(BIN)/ament_pep257 $(SOURCES) > $(VENV)/pep257.log \
	  || { cat $(VENV)/pep257.log; exit 1; }

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# speed and memory as ratios, measured side by side in one run
bench: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]' \
	  || echo 'faiss cannot be installed: it is left out'
	for bench in benchmarks/*_bench.py; do \
	  $(BIN)/python -m "benchmarks.$$(basename "$$bench" .py)" || exit 1; done

# the papers' figures: reduced sizes, or the papers' own with FULL=1, which goes on where it was
reproduce: setup
	$(BIN)/python -m experiments --jobs $(JOBS) $(if $(FULL),--full --resume)

# tutorial, glossary and the reference from the docstrings, into site/
docs: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(BIN)/mkdocs build --quiet

clean:
	rm -rf $(VENV) build install log
