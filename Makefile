# make demo is the tour, make test the proof; everything happens inside of .venv.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= headless,ros,tools,test
JOBS ?= -1
BIN = $(VENV)/bin
STAMP = $(VENV)/.setup-stamp
SOURCES = kbr_localization launch test setup.py $(wildcard benchmarks experiments)

# unit tests of arrays and small files; what starts processes, renders or tunes is left to `test`
QUICK = architecture docs docs_architecture docs_commands progress se2 \
  datasets_cold datasets_image_message evaluation_metrics evaluation_tum \
  kernels_kernel_mean kernels_kernels kernels_linalg kernels_noise kernels_off_map kernels_rules \
  localization_estimate localization_filter localization_gate localization_hypotheses \
  localization_likelihood localization_map localization_method_configs localization_motion \
  ros_arrivals ros_conversions ros_hints ros_image_queue ros_odometry_buffer ros_parameter_files \
  ros_parameters ros_persistence \
  vision_describer vision_preparation vision_spatial_pyramid vision_vocabulary

.PHONY: setup demo test quick lint format bench reproduce docs picture clean

setup: $(STAMP)

$(STAMP): setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[$(EXTRAS)]'
	touch $@

demo: setup
	$(BIN)/kbr demo --out demo

# in three processes, which take a module each in turn
test: setup
	$(BIN)/python test/side_by_side.py

# the inner loop: under a minute
quick: setup
	$(BIN)/python -m pytest -q -x -m 'not slow' $(QUICK:%=test/test_%.py)

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

# the README's picture
picture: setup
	$(BIN)/kbr demo --out demo/picture
	cp "$$(ls -td demo/picture/*/ | head -1)trajectory.png" docs/demo.png

clean:
	rm -rf $(VENV) build install log
