"""Closes a gap of nbval: a cell without stored outputs passes its comparison, whatever the cell prints."""

import gc
from collections.abc import Generator

import pytest
from nbval.plugin import IPyNbCell


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if isinstance(item, IPyNbCell) and item.options["check"] and item.test_outputs and not item.cell.outputs:
        pytest.fail(f"the cell prints or shows something, but no output is stored:\n{item.cell.source}", pytrace=False)
    return result


def pytest_collection_finish() -> None:
    """What is loaded by now stays: it need not be looked through again and again for garbage and for tensors."""
    gc.collect()
    gc.freeze()
