"""How functions travel to the ranks and values travel home: cloudpickle, with the source lines of notebook cells."""

from __future__ import annotations

import io
import linecache
import os
import sys
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import CodeType
from typing import Any

import cloudpickle
import torch
from cloudpickle.cloudpickle import _code_reduce


class _Packer(cloudpickle.Pickler):
    """cloudpickle calls all code `<dynamic-code>`; this keeps the names, so that a rank can show its line."""

    def __init__(self, file: io.BytesIO) -> None:
        # Before __init__, which reads it.
        self.dispatch_table = ChainMap({CodeType: self._reduce_code}, cloudpickle.Pickler.dispatch_table)
        self.sources: dict[str, list[str]] = {}
        self.unnumbered: dict[str, str] = {}
        super().__init__(file, protocol=5)

    def _reduce_code(self, code: CodeType) -> tuple:
        name = code.co_filename
        if not os.path.exists(name) and (lines := linecache.getlines(name)):
            name = self._name_cell(name)
            self.sources[name] = lines
        build, arguments = _code_reduce(code)
        return _build_code, (build, arguments, name)

    def _name_cell(self, filename: str) -> str:
        number = _cell_number(filename)
        if number is not None:
            return f"Cell In[{number}]"
        self.unnumbered.setdefault(filename, f" {len(self.unnumbered) + 1}" if self.unnumbered else "")
        return f"Notebook cell{self.unnumbered[filename]}"


def pack_call(fn: Any, args: tuple) -> bytes:
    """Pack a function and its arguments for all ranks. Raises ValueError when something in them cannot travel."""
    file = io.BytesIO()
    packer = _Packer(file)
    try:
        packer.dump((fn, args))
    except Exception as error:
        raise ValueError(f"the function or an argument cannot travel to the ranks: {error}") from error
    # Plain data before the rest: a rank puts the source lines in place before it unpacks any code.
    return cloudpickle.dumps((packer.sources, file.getvalue()))


def unpack_call(parcel: bytes) -> tuple[Any, tuple]:
    """Unpack what `pack_call` packed, and make the cells' source lines known to tracebacks."""
    sources, call = cloudpickle.loads(parcel)
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return cloudpickle.loads(call)


def pack_value(value: Any) -> bytes:
    """Pack what a rank returns. CUDA tensors travel as CPU tensors, and no tensor takes more than its own elements.

    Raises ValueError, naming the place in the value, for what cannot travel.
    """
    packable = _for_home(value, "the returned value")
    try:
        file = io.BytesIO()
        _Packer(file).dump(packable)
    except Exception as error:
        raise ValueError(f"the returned value cannot travel home: {error}; return tensors and plain data") from error
    return file.getvalue()


def unpack_value(parcel: bytes) -> Any:
    """Unpack what `pack_value` packed, as it came through the rank's own line."""
    return cloudpickle.loads(parcel)


def _for_home(value: Any, place: str) -> Any:
    if isinstance(value, torch.Tensor):
        return _tensor_for_home(value, place)
    if isinstance(value, torch.nn.Module):
        raise ValueError(
            f"{place} is a module ({type(value).__name__}); return its state_dict() as plain tensors instead"
        )
    if isinstance(value, torch.distributed.ProcessGroup):
        raise ValueError(f"{place} is a process group, which lives only in its rank; return its ranks instead")
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            _for_home(getattr(value, field.name), f"{place}.{field.name}")
        return value
    if type(value) in (list, tuple):
        return type(value)(_for_home(item, f"{place}[{index}]") for index, item in enumerate(value))
    if isinstance(value, Mapping) and type(value) is not dict:
        # state_dict() is an OrderedDict whose metadata nobody needs at home.
        value = dict(value) if isinstance(value, dict) else value
    if type(value) is dict:
        return {key: _for_home(item, f"{place}[{key!r}]") for key, item in value.items()}
    return value


def _tensor_for_home(tensor: torch.Tensor, place: str) -> torch.Tensor:
    if isinstance(tensor, torch.distributed.tensor.DTensor):
        raise ValueError(
            f"{place} is a DTensor, which lives on all ranks; return .to_local() or .full_tensor() instead"
        )
    tensor = tensor.detach().cpu()
    # A view would take its whole storage along.
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor


def _build_code(build: Any, arguments: tuple, name: str) -> CodeType:
    return build(*arguments).replace(co_filename=name)


def _cell_number(filename: str) -> int | None:
    """The n of `In[n]` for the cell that IPython compiled under this file name, if the cell has a number."""
    if "IPython" not in sys.modules or (shell := sys.modules["IPython"].get_ipython()) is None:
        return None
    number = getattr(shell.compile, "_filename_map", {}).get(filename)
    # A tool that runs notebooks may keep no history; all cells then count as 1, and none is In[1].
    return number if number is not None and number < len(shell.user_ns.get("In", ())) else None
