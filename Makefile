# Every target can be run again at any time: what is done already is not done twice.
# Options: PYTHON=python3.12  KIND=cpu|gpu  JOBS=2  GPU_JOBS=12  STORE=FOLDER  SITE=FOLDER  FROM=FOLDER  PAGE=--public
# BENCH='-k verify --benchmark-compare' and ASV='--bench bench_memory' go to pytest and to `asv run` as they are.

PYTHON ?= python3
KIND ?= auto
JOBS ?= 2
GPU_JOBS ?= 12
STORE ?= out/store
SITE ?= out/site
FROM ?= out/collected
PAGE ?=
OP ?= verify
CASE ?= kimi_k3_tp8_b32_t8_a3.84_fp32
PROVIDER ?= recoverssm

PY := .venv/bin/python
STORES = --store $(STORE) $(if $(wildcard reports/history),--store reports/history)
# What came in is told by names: clocks tell no files of one moment apart, and may be set back.
STORED = find records nights -type f | LC_ALL=C sort
SINCE = LC_ALL=C comm -13 ../begun -
# An empty store gives a page that says so; a GPU host without jinja2 leaves the page to another machine.
define BUILD_PAGE
case '$(STORE)' in branch:*) ;; *) mkdir -p '$(STORE)' ;; esac; \
  if $(PY) -c 'import jinja2' 2>/dev/null; then \
    $(PY) -m reports build $(STORES) --out $(SITE) $(PAGE) >/dev/null && echo 'page: $(abspath $(SITE))/index.html'; \
  else echo 'no jinja2 here: where it is, run python -m reports build $(STORES) --out $(SITE)'; fi
endef

.DEFAULT_GOAL := help
.PHONY: help setup check test test-long test-gpu test-gpu-long sanitize profile nightly bench asv site leg-begin leg-end leg-artifacts collected publish fetch job-summary clean

help: ## this list
	@echo 'make nightly   the whole job in one command; make test   everything that needs no GPU'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup: ## build .venv with pinned versions (chooses cpu or gpu; KIND=cpu|gpu decides)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	  { echo 'Python 3.11 to 3.13 is needed: make setup PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -m ci.setup_venv --kind $(KIND)

check: setup ## format, lint, types, import layers, GPU evidence, README figures
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports
	$(PY) -m ci.evidence check
	$(PY) -m reports table --store reports/history --readme README.md --check

test: check ## check, then the tests that need no GPU, under Triton's interpreter
	TRITON_INTERPRET=1 $(PY) -m pytest -m 'not gpu and not long' -n $(JOBS) --dist worksteal --timeout 300

test-long: setup ## the tests that take minutes
	TRITON_INTERPRET=1 $(PY) -m pytest -m 'long and not gpu' --timeout 3600

test-gpu: setup ## the gpu tests, on a GPU host; writes reports/evidence/gpu-tests.json, to be committed
	@$(PY) -m ci.evidence gpu
	@# the library's side by side, the harness's alone on the card, as they time
	@mkdir -p out && rm -f out/gpu-library.xml out/gpu-harness.xml
	status=0; run() { env -u TRITON_INTERPRET $(PY) -m pytest -m 'gpu and not long' "$$@"; }; \
	  run -n $(GPU_JOBS) --dist worksteal --junitxml out/gpu-library.xml tests/test_*.py || status=$$?; \
	  run --junitxml out/gpu-harness.xml tests --ignore-glob 'tests/test_*.py' || status=$$?; \
	  $(PY) -m ci.evidence write --junit out/gpu-library.xml --junit out/gpu-harness.xml && exit $$status

test-gpu-long: setup ## the gpu tests that take minutes, on a GPU host
	env -u TRITON_INTERPRET $(PY) -m pytest -m 'gpu and long' --timeout 3600

sanitize: setup ## compute-sanitizer (memcheck, racecheck) over every kernel, on a GPU host that has it
	$(PY) -m tests.sanitize

profile: setup ## Nsight Compute on one launch: make profile OP=verify CASE=kimi_k3_tp8_b32_t8_a3.84_fp32
	$(PY) -m ci profile --op $(OP) --case $(CASE) --provider $(PROVIDER)

nightly: setup ## check, measure, judge, store and show what this machine can; prints the path of the page
	@status=0; $(PY) -m ci nightly --set nightly --store $(STORE) --no-page || status=$$?; \
	  { $(BUILD_PAGE); } && exit $$status

bench: setup ## the ops under pytest-benchmark, saved below out/bench for --benchmark-compare
	$(PY) -m pytest benchmarks/test_ops.py --benchmark-only --benchmark-storage out/bench --benchmark-autosave \
	  --benchmark-save-data $(BENCH)

asv: setup ## the ops under asv for HEAD, beside the recorded nights; the page is out/asv/html
	@git diff --quiet HEAD -- recoverssm benchmarks || echo 'note: sources differ from HEAD, to which asv will ascribe these numbers'
	machine=$$($(PY) -m ci asv-machine) && \
	  $(PY) -m asv run --python same --set-commit-hash "$$(git rev-parse HEAD)" --machine "$$machine" --record-samples $(ASV)
	$(PY) -m ci asv-export --store reports/history
	$(PY) -m asv publish

site: setup ## the page alone, from $(STORE) and the recorded nights
	@$(BUILD_PAGE)

leg-begin: ## the nights so far (branch perf-history) into out/leg/store, for one of several runners to judge against
	rm -rf out/leg && mkdir -p out/leg/store
	git ls-remote --exit-code origin refs/heads/perf-history >/dev/null; \
	  case $$? in \
	    0) git fetch --quiet origin perf-history && git archive FETCH_HEAD | tar -x -C out/leg/store ;; \
	    2) echo 'no branch perf-history yet: this night has none before it' ;; \
	    *) exit 1 ;; \
	  esac
	mkdir -p out/leg/store/records out/leg/store/nights
	cd out/leg/store && $(STORED) > ../begun

leg-end: ## what came into out/leg/store since leg-begin, as out/leg/night.tar.gz
	cd out/leg/store && $(STORED) | $(SINCE) | tar -czf ../night.tar.gz -T -

leg-artifacts: ## what the newest runs of nightly.yml on this branch left on GitHub, into out/artifacts/RUN/night-LABEL
	rm -rf out/artifacts && mkdir -p out/artifacts
	@# several: a leg may have waited a day for its runner, and somebody may have started another run meanwhile. No run of a
	@# pull request, whose branch in a fork may have our branch's name, and whose workflow anything else under this one's
	branch=$${GITHUB_REF_NAME:-$$(git branch --show-current)}; runs=; \
	  for event in schedule workflow_dispatch; do \
	    runs="$$runs $$(gh run list --workflow nightly.yml --branch "$$branch" --event $$event --limit 7 \
	      --json databaseId --jq '.[].databaseId')" || exit 1; done; \
	  for run in $$runs; do mkdir "out/artifacts/$$run" && { \
	    gh run download "$$run" --pattern 'night-*' --dir "out/artifacts/$$run" || echo "run $$run: nothing was downloaded"; \
	  } || exit 1; done

collected: ## what came into out/leg/store since leg-begin, and the site in $(SITE), as plain files in $(FROM)
	rm -rf '$(FROM)' && mkdir -p '$(FROM)/new'
	cd out/leg/store && $(STORED) | $(SINCE) | xargs -r cp --parents -t '$(abspath $(FROM))/new'
	mkdir '$(FROM)/site' && cd '$(SITE)' && find . -type f -not -path '*/.*' -exec cp --parents -t '$(abspath $(FROM))/site' {} +

publish: ## what was collected in $(FROM): new nights onto the branch perf-history, the site as gh-pages; needs no set-up
	@$(PYTHON) -m ci.legs.publish '$(FROM)'

fetch: ## one commit by its hash, as of a pull request: make fetch COMMIT=SHA
	git fetch --quiet origin '$(COMMIT)'

job-summary: ## show a file of Markdown: on the page of a GitHub job, else here: make job-summary FILE=out/gate/summary.md
	@cat '$(FILE)' >> "$${GITHUB_STEP_SUMMARY:-/dev/stdout}"

clean: ## remove what was built and measured here (out/) and caches; .venv stays
	rm -rf out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
