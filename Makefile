# Every target sets up what it needs first. Works with GNU Make 3.81 or newer and any POSIX shell.
#
#   make run PROMPT="..." MODEL=...      MODEL is a name of `racer-local models list` or a path
#   make setup BACKEND=cpu|metal|cuda|vulkan [PREBUILT=1]
#   make chat|ui|serve|bench|verify|test|test-all ARGS="..."   hands ARGS on

.DEFAULT_GOAL := help
.PHONY: help setup run chat ui serve bench verify test test-all check clean

PROMPT_DEFAULT := Write a short story about a robot who learns to paint, then list its main events.

# Taken as they are: quotes, $ and emoji reach the program because nothing is pasted into a shell
# line and Make does not expand them. (Some shells export a PROMPT of their own; it is not meant.)
ifeq ($(origin PROMPT),command line)
override PROMPT := $(value PROMPT)
else
override PROMPT := $(PROMPT_DEFAULT)
endif
override MODEL := $(value MODEL)
override BACKEND := $(value BACKEND)
override PREBUILT := $(value PREBUILT)
export PROMPT MODEL BACKEND PREBUILT

# The first Python that is new enough. PYTHON=... names one.
find_python = \
	python=; \
	for candidate in "$$PYTHON" python3.11 python3.12 python3.13 python3.10 python3 python; do \
		if [ -n "$$candidate" ] && "$$candidate" -c \
			'import sys; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then \
			python="$$candidate"; break; \
		fi; \
	done; \
	if [ -z "$$python" ]; then \
		echo 'error: no Python 3.10 or newer was found.' >&2; \
		echo 'Install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install' >&2; \
		echo 'python@3.11; Windows: python.org), or name it: make PYTHON=/path/to/python3' >&2; \
		exit 1; \
	fi

# $(1): extras, $(2): models; both separated by commas.
set_up = $(find_python); \
	"$$python" -m racer_local.setup.env --backend="$$BACKEND" --prebuilt="$$PREBUILT" \
		--extras=$(1) --models=$(2) || exit 1; \
	bin=.venv/bin; if [ -d .venv/Scripts ]; then bin=.venv/Scripts; fi

comma := ,
# Not fetched when another model is named.
default_model = $(if $(MODEL),,smollm2-135m-instruct)

help:
	@echo 'make run [PROMPT="..."] [MODEL=...]   answer a prompt, then compare with plain decoding'
	@echo 'make bench                            measure the speed against plain decoding'
	@echo 'make chat [MODEL=...] [ARGS="..."]     talk to a model in the terminal'
	@echo 'make verify [ARGS=--quick]            check that drafting leaves the output alone'
	@echo 'make ui                               chat in your browser'
	@echo 'make serve                            serve programs that speak the OpenAI API'
	@echo 'make test | test-all | check          tests | also the long ones | format, lint, types, units'
	@echo 'make setup [BACKEND=cpu|metal|cuda|vulkan] [PREBUILT=1]   build llama.cpp for a device'
	@echo 'make clean                            remove all that was made here, except models'

setup:
	@$(call set_up,,smollm2-135m-instruct)
	@echo 'ready; try: make run'

run:
	@$(call set_up,,$(default_model)); \
	set -- --compare --max-tokens 200 --temp 0; \
	if [ -n "$$MODEL" ]; then set -- "$$@" --model "$$MODEL"; fi; \
	exec "$$bin/racer-local" generate "$$@" -- "$$PROMPT"

chat:
	@$(call set_up,,$(default_model)); \
	set -- $(ARGS); if [ -n "$$MODEL" ]; then set -- "$$@" --model "$$MODEL"; fi; \
	exec "$$bin/racer-local" chat "$$@"

ui serve:
	@$(call set_up,$@,$(default_model)); \
	set -- $(ARGS); if [ -n "$$MODEL" ]; then set -- "$$@" --model "$$MODEL"; fi; \
	exec "$$bin/racer-local" $@ "$$@"

bench:
	@$(call set_up,,$(default_model)); \
	set -- $(ARGS); if [ -n "$$MODEL" ]; then set -- "$$@" --model "$$MODEL"; fi; \
	exec "$$bin/racer-local" bench "$$@"

verify:
	@$(call set_up,,$(default_model)); \
	exec "$$bin/racer-local" verify $(ARGS) -- "$${MODEL:-smollm2-135m-instruct}"

test test-all:
	@$(call set_up,dev$(comma)bench$(comma)server$(comma)ui,smollm2-135m-instruct$(comma)gemma-3-270m); \
	"$$bin/python" -m racer_local.setup.browser; \
	exec "$$bin/python" -m pytest -ra $(if $(filter test-all,$@),-m 'slow or not slow') $(ARGS)

check:
	@$(call set_up,dev$(comma)server$(comma)ui,); \
	set -e; \
	"$$bin/python" -m ruff format --check .; \
	"$$bin/python" -m ruff check .; \
	"$$bin/python" -m mypy; \
	"$$bin/python" -m pytest -q tests/unit tests/property

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find racer_local tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo 'models/ was kept'
