# Set-up and development only; what a user does with a study is a snakemake target or option.
.DEFAULT_GOAL := help
.PHONY: help run test test-kill test-gpu bench bench-plan bench-launch bench-jobs bench-study format lint lock

PYTHON ?= python3
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

run: $(VENV)/run.stamp  ## Install what a study needs and run the one in config.yaml
	snakemake --cores 4 --resources gpu=2

test: $(VENV)/dev.stamp  ## Install what tests need and pass them
	pytest -n auto

test-kill: $(VENV)/dev.stamp  ## Kill snakemake, launch and programs N times per cell (N=20)
	KILL_ROUNDS=$(or $(N),20) pytest -q -n auto tests/test_kill.py

test-gpu: $(VENV)/dev.stamp  ## Check leases, caps and packing on this machine's GPU
	pytest -q -s tests/gpu

bench: bench-plan bench-launch bench-jobs bench-study  ## Measure everything that is measured

bench-plan: $(VENV)/run.stamp  ## Measure planning against a hand-written Snakefile
	python benchmarks/plan.py

bench-launch: $(VENV)/run.stamp  ## Measure what launch adds to a process
	python benchmarks/launch.py

bench-jobs: $(VENV)/run.stamp  ## Measure what a job costs beside its program (20 minutes)
	python benchmarks/jobs.py

bench-study: benchmarks/.peers/stamp  ## Measure studies by Snakesweep and by what people use instead (an hour)
	python benchmarks/study.py --epochs 20
	python benchmarks/study.py --epochs 350 --runs 6

format: $(VENV)/dev.stamp  ## Format the code and the generated documentation
	ruff format .
	ruff check --fix .
	snakefmt Snakefile workflow/rules
	python docs/reference.py

lint: $(VENV)/dev.stamp  ## Check format and style
	ruff format --check .
	ruff check .
	snakefmt --check Snakefile workflow/rules
	snakemake --lint

lock:  ## Pin the newest versions that envs/*.in allow (needs uv)
	for name in requirements requirements-dev; do \
		uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
			--upgrade envs/$$name.in -o envs/$$name.txt; \
	done
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		--upgrade benchmarks/peers.in -o benchmarks/peers.txt

# Installed anew only when the pinned requirements change.
$(VENV)/run.stamp: envs/requirements.txt
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

$(VENV)/dev.stamp: envs/requirements-dev.txt $(VENV)/run.stamp
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	touch $@

# What we are compared with: Python packages beside ours, and two programs of the distribution where it lets us.
benchmarks/.peers/stamp: benchmarks/peers.txt $(VENV)/run.stamp
	$(PYTHON) -m venv benchmarks/.peers
	benchmarks/.peers/bin/pip install --quiet --disable-pip-version-check --require-hashes -r $<
	.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$(benchmarks/.peers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth"
	command -v tsp parallel > /dev/null || { apt-get -q update && apt-get -q install -y task-spooler parallel; } || \
		echo "Without task-spooler and GNU parallel: they could not be installed."
	touch $@
