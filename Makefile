PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE  # tests and pages start hundreds of processes

NUMERICS := $(addprefix tests/,bayesian/accounting/test_gaussian_pairs.py bayesian/accounting/test_log_moments.py)

RELIABILITY := slow-tests coverage generative sabotage kills damage audit
slow-tests = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --hypothesis-profile=search -m slow
coverage = PYTHONPATH=benchmarks $(BIN)/python -m studies coverage --out docs/studies
generative = PYTHONPATH=benchmarks $(BIN)/python -m studies generative --out docs/studies
sabotage = $(BIN)/python tests/sabotage/run.py > $@.txt && mv $@.txt docs/benchmarks/sabotage.txt
kills = $(BIN)/python benchmarks/interruptions.py --kills 330 > $@.txt && mv $@.txt docs/benchmarks/interruptions.txt
damage = $(BIN)/python benchmarks/damage.py --inputs 100000 > $@.txt && mv $@.txt docs/benchmarks/damage.txt
audit = OMP_NUM_THREADS=1 $(BIN)/bdpvi audit --simulated --runs 1000 --out build/audit

.PHONY: help demo demo-dask test durations test-all plain ranges lock dist lint docs check-docs paper benchmark large reliability clean

demo: $(VENV)/installed  ## fit the embedded data, release, account, draw a figure
	$(BIN)/bdpvi demo --out demo

demo-dask: $(VENV)/installed  ## a cluster on this machine: a model, a certificate and synthetic rows of 5 million rows
	$(BIN)/python examples/larger/dask_cluster.py demo-dask

test: $(VENV)/installed  ## the tests of what the library promises, with doctests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

durations: $(VENV)/installed  ## make test, then the seconds of each room and of the slowest tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --durations=40

test-all: $(VENV)/installed  ## the tests that make test leaves out: comparisons, studies, examples, code on pages
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'whole and not slow'

plain: $(VENV)/installed  ## tests of numerics as on a processor without vectors or fused operations
	ATEN_CPU_CAPABILITY=default NUMBA_CPU_NAME=generic OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow" $(NUMERICS)

RANGES ?= 3.10=lowest-direct 3.10=highest 3.12=highest 3.13=highest 3.14=highest
SHOWN := numpy|pandas|pyarrow|scipy|scikit-learn|torch|pyro-ppl|opacus|flwr

ranges:  ## the tests with the oldest and with the newest releases that are supported, into docs/benchmarks/ranges.txt; downloads CUDA builds of torch
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install -q uv
	mkdir -p build/ranges
	echo "make ranges" > build/ranges/ranges.txt
	for one in $(RANGES); do \
	  uv=build/uv/bin/uv own=build/ranges/$$one && \
	  $$uv venv -q --clear --python $${one%=*} $$own && \
	  $$uv pip install -q --python $$own --resolution $${one#*=} -e '.[test]' && \
	  OMP_NUM_THREADS=1 $$own/bin/python -m pytest -q -n 2 --dist worksteal -o filterwarnings=default | tee $$own/tests.txt; \
	  { echo; echo "$$one: $$(tail -n 1 $$own/tests.txt)"; \
	    $$uv pip freeze --python $$own | grep -E "^($(SHOWN))==" | paste -sd ' '; } >> build/ranges/ranges.txt; \
	done
	mv build/ranges/ranges.txt docs/benchmarks/ranges.txt
	! grep -E "failed|error" docs/benchmarks/ranges.txt

lint: $(VENV)/installed  ## ruff, which room imports which, and mypy for three systems and the oldest Python
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/types/*
	mkdir -p build/types
	cp -a pyproject.toml bdpvi tests examples benchmarks docs build/types
	cp -a guides datasets build/types/bdpvi
	cd build/types && PYTHONPATH=. $(abspath $(BIN))/lint-imports --no-cache
	cd build/types && $(abspath $(BIN))/mypy --platform linux
	cd build/types && for system in darwin win32; do \
	  $(abspath $(BIN))/mypy --platform $$system --cache-dir .mypy_cache/$$system -p bdpvi \
	    --python-version 3.10 --disable-error-code no-any-return --no-warn-unused-ignores || exit 1; \
	done

docs: $(VENV)/installed  ## the site, in build/site; a warning is an error
	$(BIN)/sphinx-build -W -q --keep-going docs build/site
	@echo build/site/index.html

check-docs: docs  ## open every page in Chromium, where there is one
	$(BIN)/python docs/check_site.py build/site

paper: $(VENV)/installed  ## the paper, build/paper/bdpvi.pdf, from printed numbers; needs pdflatex
	PYTHONPATH=benchmarks $(BIN)/python docs/draw_figures.py --printed --as pdf --out build/paper
	cd docs/paper && for run in 1 2 3; do \
	  pdflatex -interaction=batchmode -halt-on-error -output-directory ../../build/paper bdpvi.tex || exit 1; \
	done

benchmark: $(VENV)/installed  ## the numbers in docs/benchmarks
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/rows.py
	$(BIN)/python benchmarks/odd_cells.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/table.py
	$(BIN)/python benchmarks/dp_step.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/stream.py
	for epsilon in 1 10; do \
	  $(BIN)/python examples/generative/embedding.py --epsilon $$epsilon && \
	  $(BIN)/python examples/generative/cvae.py --epsilon $$epsilon || exit 1; \
	done
	$(BIN)/bdpvi compare --data abalone --searched --out comparisons/abalone
	$(BIN)/bdpvi compare --data adult --searched --out comparisons/adult
	$(BIN)/python benchmarks/reproduction.py --abalone comparisons/abalone --adult comparisons/adult

large: $(VENV)/installed  ## releases of tables of 20 million rows in blocks, and their limits; an hour, 6 GB in build/large
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/blocks.py build/large --rows 2e7
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/blocks.py build/large --rows 2e7 --route synthesize --numbers 11
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/blocks.py build/large --rows 2e7 --route fit

reliability: $(addprefix build/reliability/,$(RELIABILITY))  ## all that could refute a guarantee: docs/reliability.md; hours, and goes on where it was interrupted
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/reliability.py --audit build/audit/audit.json --out docs/reliability.md
	rm -r build/reliability build/audit

build/reliability/%: | $(VENV)/installed
	@mkdir -p $(@D)
	$($*)
	@touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 10), "bdpvi needs Python 3.10 or newer"'
	$(PYTHON) -m venv $(VENV)
ifdef LOCKED
	$(BIN)/python -m pip install -q --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt torch
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[test,lint,docs]'
endif
	touch $@

dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist:  ## wheel and sdist of the last commit, built twice to the same bytes and checked; licences and SBOM of what the wheel needs
	$(PYTHON) -m venv --clear build/release
	build/release/bin/python -m pip install -q build twine cyclonedx-bom pip-licenses
	rm -rf dist build/dist
	for built in build/dist dist; do \
	  rm -rf build/source && git clone -q . build/source && \
	  build/release/bin/python -m build -o $$built build/source > build/release/build.log 2>&1 && \
	  mkdir build/source/unpacked && tar -xzf $$built/*.tar.gz -C build/source/unpacked && \
	  tar --sort=name --mtime=@$$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner --mode=go=rX,u+rw \
	    -C build/source/unpacked -c $$(ls build/source/unpacked) | gzip -n9 > $$(echo $$built/*.tar.gz) || exit 1; \
	done
	cd dist && for file in *; do cmp $$file ../build/dist/$$file || exit 1; done
	build/release/bin/twine check --strict dist/*
	$(PYTHON) -m venv --clear build/needed
	build/needed/bin/python -m pip install -q -c constraints.txt torch
	build/needed/bin/python -m pip install -q -c constraints.txt dist/*.whl
	build/release/bin/cyclonedx-py environment -o build/release/sbom.json build/needed/bin/python
	{ echo "What the wheel installs, and its licences, by"; echo; echo "    make dist"; echo; \
	  build/release/bin/pip-licenses --python build/needed/bin/python --format=markdown; } > docs/licences.txt
	sha256sum dist/*

lock:  ## the versions of constraints.txt and all that they need, with hashes: make demo LOCKED=1 takes no others
	$(PYTHON) -m venv build/uv
	build/uv/bin/python -m pip install -q uv
	build/uv/bin/uv pip compile -q pyproject.toml --extra test --extra lint --extra docs --universal \
	  --python-version 3.10 --generate-hashes --no-annotate --custom-compile-command 'make lock' \
	  -c constraints.txt -o requirements.lock

clean:  ## remove the environment and all that was built
	rm -rf $(VENV) build dist *.egg-info demo demo-dask

help:  ## list what make does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
