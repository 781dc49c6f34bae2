# Everything is installed in .venv, by setup.sh.
TORCH  ?= auto
PYTHON ?=
ARGS   ?=

BIN    := .venv/bin
SETUP  := sh setup.sh
FIRST  := notebooks/00_four_ranks_in_a_cell.ipynb
# A Linux without a screen opens no browser; there the printed address is what one needs.
BROWSER = $(shell [ "$$(uname)" != Linux ] || [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ] || echo --no-browser)

.PHONY: help lab test slides slides-pdf site setup lint format clean

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile
	@echo
	@echo "  TORCH=cpu or TORCH=cuda chooses the torch build (now: $(TORCH))"
	@echo "  PYTHON=python3.12 chooses the Python of .venv"
	@echo "  ARGS=... is passed on: make test ARGS='-k launch', make lab ARGS=--port=9999"

lab: setup  ## Open JupyterLab on the first notebook and print its address
	@PATH="$(CURDIR)/$(BIN):$$PATH" "$(BIN)/python" -m jupyterlab --ip=127.0.0.1 --allow-root --LabApp.default_url=/lab/tree/$(FIRST) $(BROWSER) $(ARGS)

test: setup  ## Run every test, two files at a time
	@"$(BIN)/python" -m pytest -n 2 $(ARGS)

slides: setup  ## Make a deck of slides from each notebook, and one for the workshop, in build/slides
	@"$(BIN)/python" -m tp_teach.lesson.slides $(ARGS)

slides-pdf: setup  ## Make the slides and print them to PDF, with Chromium
	@"$(BIN)/python" -m tp_teach.lesson.slides --pdf $(ARGS)

site: setup  ## Make the series as web pages, in build/site
	@"$(BIN)/python" -m tp_teach.lesson.site $(ARGS)

setup:  ## Make .venv and install everything in it, unless that is done
	@TORCH='$(TORCH)' PYTHON='$(PYTHON)' $(SETUP)

lint: setup  ## Check style, format and the order of imports
	@"$(BIN)/ruff" check
	@"$(BIN)/ruff" format --check
	@"$(BIN)/lint-imports"

format: setup  ## Format code and notebooks
	@"$(BIN)/ruff" format
	@"$(BIN)/ruff" check --fix

clean:  ## Remove .venv and everything else that was made here
	rm -rf .venv build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
