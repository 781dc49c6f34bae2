"""How functions travel to the ranks and values travel home: cloudpickle, with the source lines of notebook cells."""

from __future__ import annotations

import io
import linecache
import os
import sys
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pickle import PickleBuffer
from types import CodeType, ModuleType
from typing import Any

import cloudpickle
import torch
from cloudpickle import cloudpickle as internals
from torch._subclasses import FakeTensor

LARGE = 2**16
"""From this many bytes on, a tensor travels home apart."""
PIECE = 2**24
"""It travels in pieces of this many bytes, because who receives one holds it twice."""
HEAVY = 50 * 2**20
"""From this many bytes on, a variable that a function takes along is pointed out."""


class _Packer(cloudpickle.Pickler):
    """cloudpickle calls all code `<dynamic-code>`; this keeps the names, so that a rank can show its line."""

    def __init__(self, file: io.BytesIO, **options: Any) -> None:
        # Before __init__, which reads it.
        self.dispatch_table = ChainMap({CodeType: self._reduce_code}, cloudpickle.Pickler.dispatch_table)
        self.sources: dict[str, list[str]] = {}
        self.unnumbered: dict[str, str] = {}
        super().__init__(file, protocol=5, **options)

    def reducer_override(self, thing: Any) -> Any:
        # cloudpickle takes along the loaded submodules whose names a function mentions, so `dist` and a variable
        # called `config` bring torch.distributed.config, which is of a class of its own.
        if isinstance(thing, ModuleType) and sys.modules.get(thing.__name__) is thing:
            return import_module, (thing.__name__,)
        return super().reducer_override(thing)

    def _reduce_code(self, code: CodeType) -> tuple:
        name = code.co_filename
        if not os.path.exists(name) and (lines := linecache.getlines(name)):
            name = self._name_cell(name)
            self.sources[name] = lines
        build, arguments = internals._code_reduce(code)
        return _build_code, (build, arguments, name)

    def _name_cell(self, filename: str) -> str:
        number = _cell_number(filename)
        if number is not None:
            return f"Cell In[{number}]"
        self.unnumbered.setdefault(filename, f" {len(self.unnumbered) + 1}" if self.unnumbered else "")
        return f"Notebook cell{self.unnumbered[filename]}"


class CannotTravel(ValueError):
    """Something in a returned value lives only in its rank. `thing` is it, `instead` what to return."""

    def __init__(self, thing: Any, instead: str) -> None:
        super().__init__(instead)
        self.thing, self.instead = thing, instead


class _ValuePacker(_Packer):
    """Packs what goes home: tensors by their own elements and on the CPU, and classes of the caller by name."""

    def __init__(self, file: io.BytesIO, classes: Mapping[type, str], buffers: list[PickleBuffer]) -> None:
        super().__init__(file, buffer_callback=buffers.append)
        self.classes = classes

    def reducer_override(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            return _reduce_tensor(thing)
        if isinstance(thing, torch.nn.Module):
            raise CannotTravel(thing, f"a module ({type(thing).__name__}); return its state_dict() as plain tensors")
        if isinstance(thing, torch.distributed.ProcessGroup):
            raise CannotTravel(thing, "a process group, which lives only in its rank; return its ranks")
        if isinstance(thing, type) and thing in self.classes:
            # By value it would overwrite the caller's class with this rank's.
            return _class_of_caller, (self.classes[thing],)
        return super().reducer_override(thing)


def pack_call(fn: Any, args: tuple) -> bytes:
    """Pack a function and its arguments for all ranks. Raises ValueError when something in them cannot travel.

    Warns of a large variable that the function takes along because it mentions it.
    """
    file = io.BytesIO()
    packer = _Packer(file)
    try:
        packer.dump((fn, args))
    except Exception as error:
        raise ValueError(f"the function or an argument cannot travel to the ranks: {error}") from error
    if file.tell() > HEAVY:
        _warn_of_luggage(fn)
    # Plain data before the rest: a rank puts the source lines in place before it unpacks any code.
    return cloudpickle.dumps((packer.sources, file.getvalue()))


def _warn_of_luggage(fn: Any) -> None:
    code = getattr(fn, "__code__", None)
    if code is None:
        return
    mentioned = {name: fn.__globals__.get(name) for name in internals._extract_code_globals(code)}
    cells = zip(code.co_freevars, fn.__closure__ or (), strict=True)
    mentioned |= {name: cell.cell_contents for name, cell in cells}
    sizes = {name: len(cloudpickle.dumps(value)) for name, value in mentioned.items()}
    name = max(sizes, key=sizes.get, default=None)
    if name is not None and sizes[name] > HEAVY:
        warnings.warn(
            f"{fn.__name__} mentions the variable {name!r}, so {sizes[name] / 2**20:,.0f} MiB travel to each rank; "
            "pass it as an argument if that is meant, or make it inside the function",
            stacklevel=5,
        )


def unpack_call(pickling: bytes) -> tuple[Any, tuple, dict[type, str]]:
    """The function, its arguments, and the classes that came with them; cells' lines become known to tracebacks."""
    sources, call = cloudpickle.loads(pickling)
    for name, lines in sources.items():
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    fn, args = cloudpickle.loads(call)
    return fn, args, dict(internals._DYNAMIC_CLASS_TRACKER_BY_CLASS)


def pack_value(value: Any, classes: Mapping[type, str]) -> tuple[bytes, list[PickleBuffer]]:
    """Pack what a rank returns, large tensors apart; `classes` are those that `unpack_call` brought.

    CUDA tensors travel as CPU tensors, and no tensor takes more than its own elements along. Raises ValueError, naming
    the place in the value, for what cannot travel.
    """
    file = io.BytesIO()
    buffers: list[PickleBuffer] = []
    try:
        _ValuePacker(file, classes, buffers).dump(value)
    except CannotTravel as error:
        place = next(_places(value, error.thing, "the returned value"), "something in the returned value")
        raise ValueError(f"{place} is {error.instead} instead") from None
    except Exception as error:
        raise ValueError(f"the returned value cannot travel home: {error}; return tensors and plain data") from None
    return file.getvalue(), buffers


def unpack_value(pickling: bytes, buffers: Sequence[bytearray | PickleBuffer]) -> Any:
    """Unpack what `pack_value` packed, as it came through the rank's own line."""
    return cloudpickle.loads(pickling, buffers=buffers)


def _reduce_tensor(tensor: torch.Tensor) -> tuple:
    # Importing DTensor takes as long as starting the ranks; who has one has imported it.
    distributed_tensor = sys.modules.get("torch.distributed.tensor")
    if distributed_tensor is not None and isinstance(tensor, distributed_tensor.DTensor):
        raise CannotTravel(tensor, "a DTensor, which lives on all ranks; return .to_local() or .full_tensor()")
    if isinstance(tensor, FakeTensor):  # of a simulation, where everybody knows that there are no numbers
        return _build_shape, (tensor.dtype, tuple(tensor.shape))
    if tensor.is_meta:
        raise CannotTravel(tensor, "a meta tensor, which has no numbers; return its shape")
    tensor = tensor.detach().cpu()
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    numbers = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
    # A large tensor goes beside the pickle, so that it is not copied into it and out of it.
    packed = bytearray(numbers) if numbers.nbytes < LARGE else PickleBuffer(numbers)
    return _build_tensor, (packed, tensor.dtype, tuple(tensor.shape))


def _build_tensor(numbers: bytearray, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    if not numbers:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(numbers, dtype=dtype).reshape(shape)


def _build_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _build_code(build: Any, arguments: tuple, name: str) -> CodeType:
    return build(*arguments).replace(co_filename=name)


def _class_of_caller(number: str) -> type:
    return internals._DYNAMIC_CLASS_TRACKER_BY_ID[number]


def _places(value: Any, thing: Any, place: str) -> Iterator[str]:
    """Where `thing` stands in nested containers and objects."""
    if value is thing:
        yield place
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _places(item, thing, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple | set | frozenset):
        for index, item in enumerate(value):
            yield from _places(item, thing, f"{place}[{index}]")
    elif hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
        for name, item in vars(value).items():
            yield from _places(item, thing, f"{place}.{name}")


def _cell_number(filename: str) -> int | None:
    """The n of `In[n]` for the cell that IPython compiled under this file name, if the cell has a number."""
    if "IPython" not in sys.modules or (shell := sys.modules["IPython"].get_ipython()) is None:
        return None
    number = getattr(shell.compile, "_filename_map", {}).get(filename)
    # A tool that runs notebooks may keep no history; all cells then count as 1, and none is In[1].
    return number if number is not None and number < len(shell.user_ns.get("In", ())) else None
