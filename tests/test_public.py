"""`import tp_teach as tp`: the names it gives, and what it does not load."""

import subprocess
import sys

import pytest

import tp_teach as tp


@pytest.mark.parametrize("name", tp.__all__)
def test_each_public_name_is_there(name):
    assert getattr(tp, name) is not None


@pytest.mark.parametrize("name", "launch device RankFailed RanksStuck Run load measure plot predict".split())
def test_the_promised_names_are_public(name):
    assert name in tp.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'tp_teach' has no attribute 'lunch'"):
        _ = tp.lunch


def test_importing_it_loads_no_tables_no_figures_and_no_notebook():
    heavy = {"pandas", "pyarrow", "matplotlib", "IPython", "ipywidgets"}
    program = f"import sys, tp_teach; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
