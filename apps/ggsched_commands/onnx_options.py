"""``ggsched run model.onnx``: options, and the run."""

from collections.abc import Callable, Container, Iterable, Sequence
from functools import wraps
from io import BytesIO
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
import numpy as np

from ggsched.cli.console import write_json
from ggsched.cli.options import COMPUTE, PLANNING, option, verified, with_options
from ggsched.cli.output_files import check_writable, output_file
from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.files.mapping import map_file, require_unchanged
from ggsched.files.reading import reason
from ggsched.printable import write_out
from ggsched_commands.trace_file import Wanted, recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ggsched_import.onnx import OnnxModel

F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray[Any, np.dtype[Any]]

SUFFIX: Final = ".onnx"
_MAX_NPY_HEADER: Final = 1 << 16

_SHARED: Final = ("model", "model_option", "devices", "placement", "as_json", *PLANNING)
_SHARED_BY_RUNS: Final = ("verify", "trace", "html", "report", *COMPUTE)
"""Options that mean the same for every model."""


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.BadParameter(f"{text!r} is not of the form NAME=FILE.npy")
    return name, value


def _dim(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not (name and equals and value.isascii() and value.isdigit()):
        raise click.BadParameter(f"{text!r} is not of the form NAME=EXTENT")
    return name, int(value)


CONSTANT: Final = option(
    "--constant constants",
    "An input of an ONNX model that shapes may depend on. May be repeated.",
    _named,
    metavar="NAME=FILE.npy|NUMBER",
    multiple=True,
)

DIM: Final = option(
    "--dim dims",
    "An extent that an ONNX model leaves open and its inputs do not give.",
    _dim,
    metavar="NAME=EXTENT",
    multiple=True,
)

_OPTIONS: Final = (
    option(
        "--input inputs",
        "An input of an ONNX model. May be repeated.",
        _named,
        metavar="NAME=FILE.npy",
        multiple=True,
    ),
    CONSTANT,
    DIM,
    option(
        "--output output",
        "Write the outputs of an ONNX model.",
        click.Path(dir_okay=False, writable=True),
        metavar="FILE.npz",
    ),
)


def onnx_options(function: F) -> F:
    """Add the options; a model whose name ends in ``.onnx`` is run here."""
    return onnx_command(function, _run, _SHARED_BY_RUNS, _OPTIONS)


def onnx_command(
    function: F,
    instead: Callable[..., None],
    shared: Iterable[str],
    options: Sequence[Callable[[Any], Any]],
) -> F:
    """Add options of ONNX models to a command, and what is done for these models.

    Args:
        function: The command, for all other models.
        instead: Gets the settings, what all commands of models have, and the values of the options.
        shared: Options that mean the same for every model, besides those of all commands.
    """
    made = click.command("onnx")(with_options(lambda: None, options))
    names = [param.name or "" for param in made.params]

    @wraps(function)
    def command(settings: Settings, /, **given: Any) -> Any:
        own = {name: given.pop(name) for name in names}
        if given["model"].endswith(SUFFIX):
            refuse_others({*_SHARED, *shared, *names}, "models that generate text")
            return instead(settings, given, **own)
        for name in filter(own.get, own):
            what = f"--{name.removesuffix('s')} is for ONNX models"
            raise UsageError(what, where=given["model"], hint=f"whose names end in {SUFFIX}")
        return function(settings, **given)

    return with_options(cast(F, command), options)


def is_given(name: str) -> bool:
    """Whether an option stands on the command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is click.core.ParameterSource.COMMANDLINE


def refuse_others(known: Container[str], what: str) -> None:
    """Refuse options that mean nothing for an ONNX model.

    Raises:
        UsageError: one stands on the command line.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in known and is_given(name):
            said = next((o for o in parameter.opts if o.startswith("--")), parameter.opts[0])
            raise UsageError(f"{said} is for {what}", where=context.command_path)


def open_model(
    path: str, dims: Iterable[tuple[str, int]], constants: Iterable[tuple[str, str]]
) -> "OnnxModel":
    """Read a model.

    Raises:
        UsageError: it cannot be read, or a constant is neither a number nor a file of one array.
        ModelError: it is damaged, or has what is not imported.
    """
    from ggsched_import.onnx import from_onnx

    known = {name: _number(text) for name, text in constants}
    try:
        return from_onnx(path, dict(dims), constants=known)
    except OSError as error:
        raise UsageError("cannot be read", where=path, why=reason(error)) from error


def _run(
    settings: Settings,
    given: dict[str, Any],
    *,
    inputs: tuple[tuple[str, str], ...],
    constants: tuple[tuple[str, str], ...],
    dims: tuple[tuple[str, int], ...],
    output: str | None,
) -> None:
    from ggsched.scheduler import Scheduler

    check_writable(output, "the outputs")
    model = open_model(given["model"], dims, constants)
    arrays = {name: _load(path) for name, path in inputs}
    _check(model, arrays)
    settings = verified(settings, given["verify"])
    wanted = Wanted(given["trace"], given["html"], given["report"])
    with (
        recording(wanted, f"ggsched run {Path(given['model']).name}") as recorder,
        Scheduler(
            given["devices"],
            weights=model.weight,
            settings=settings,
            placement=given["placement"] if is_given("placement") else "cost",
            recorder=recorder,
        ) as scheduler,
    ):
        found = model.run(scheduler, arrays)
        require_unchanged(arrays.values())
    if output is not None:
        with output_file(output, "the outputs") as file:
            np.savez(file, **found)  # type: ignore[arg-type]
    if given["as_json"]:
        write_json({"outputs": {n: _described(a) for n, a in found.items()}})
    else:
        for name, array in found.items():
            write_out(f"{name} {_line(array)}\n")


def _check(model: "OnnxModel", arrays: dict[str, Array]) -> None:
    missing = [p for n, p in model.inputs.items() if n not in arrays and not model.is_constant(n)]
    if missing:
        port, unknown = missing[0], [name for name in arrays if name not in model.inputs]
        hint = f"--input {port.name}=FILE.npy"
        if not port.shape:
            hint += f", or --constant {port.name}=NUMBER where shapes or branches depend on it"
        why = f"{unknown[0]!r} is not an input" if unknown else ""
        what = f"no value for the input {port}"
        raise UsageError(what, where="ggsched run", why=why, hint=hint)


def _load(path: str) -> Array:
    """Return the array of a file, mapped: what its header promises takes no memory."""
    try:
        data = map_file(path)
    except OSError as error:
        raise UsageError("cannot be read", where=path, why=reason(error)) from error
    if data[:4].tobytes() == b"PK\3\4":  # as numpy.savez writes
        raise UsageError("not one array", where=path, hint="write it with numpy.save")
    try:
        return _array_of(data)
    except (ValueError, OverflowError, SyntaxError, TypeError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise UsageError("not an array that numpy wrote", where=path, why=why) from error


def _array_of(data: "NDArray[np.uint8]") -> Array:
    """Return the array in the bytes of a ``.npy`` file of version 1 or 2.

    Raises:
        ValueError: it has fewer elements than its header says, or elements of Python.
        SyntaxError, TypeError: its header is damaged.
    """
    head = BytesIO(data[:_MAX_NPY_HEADER].tobytes())
    version = np.lib.format.read_magic(head)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read = np.lib.format.read_array_header_1_0
    if version == (2, 0):
        read = np.lib.format.read_array_header_2_0
    try:
        shape, is_fortran, dtype = read(head)
    except TokenError as error:
        raise ValueError(str(error)) from error
    rest, nbytes = data[head.tell() :], prod(shape) * dtype.itemsize
    if dtype.hasobject or any(n < 0 for n in shape):
        raise ValueError(f"{dtype}{list(shape)}")
    if nbytes > len(rest):
        raise ValueError(f"{len(rest)} bytes for {dtype}{list(shape)}")
    return rest[:nbytes].view(dtype).reshape(shape, order="F" if is_fortran else "C")


def _number(text: str) -> Array:
    if text.endswith(".npy"):
        found = _load(text)
        constant = np.array(found)  # folded when the model is bound, which looks at no file
        require_unchanged([found])
        return constant
    for kind in (int, float):
        try:
            return np.array(kind(text))
        except ValueError:
            continue
    raise UsageError(f"{text!r} is neither a number nor a file .npy", where="--constant")


def _described(array: Array) -> dict[str, Any]:
    return {"dtype": str(array.dtype), "shape": list(array.shape), **_range(array)}


def _line(array: Array) -> str:
    text = f"{array.dtype}{list(array.shape)}"
    return text + "".join(f" {name} {value:g}" for name, value in _range(array).items())


def _range(array: Array) -> dict[str, float]:
    if not array.size or array.dtype.kind == "b":
        return {}
    low, mean, high = array.min(), array.mean(dtype=np.float64), array.max()
    found = {"min": float(low), "mean": float(mean), "max": float(high)}
    return {name: value for name, value in found.items() if np.isfinite(value)}
