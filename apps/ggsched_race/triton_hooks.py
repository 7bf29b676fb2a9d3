"""Launches of Triton kernels, those that a compiler of PyTorch has generated included.

A launch touches all bytes of the tensors that it is given, read or written as the text of the
kernel says (``kernel_modes``). What tuning launches is left out: it is on the same stream, with the
same tensors, in front of the launch that counts.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ggsched_race.kernel_modes import Modes, modes_of, scope_of, text_of
from ggsched_race.patches import Patches
from ggsched_race.pytorch import Recorder, first_line
from ggsched_race.when_imported import Actions

_ALL: Final = "nothing is known of it, so that all arguments count as read and written"


def triton_actions(patches: Patches, recorder: Recorder) -> Actions:
    """Return what to do with modules of Triton when they are loaded."""
    launches = _Launches(recorder)

    def jit(module: ModuleType) -> None:
        launches.patch(patches, module.JITFunction)

    def compiler(module: ModuleType) -> None:
        launches.patch_compiled(patches, module.CompiledKernel)

    def interpreter(module: ModuleType) -> None:
        launches.patch(patches, module.InterpretedFunction)

    def autotuner(module: ModuleType) -> None:
        _tune_unseen(patches, recorder, module.Autotuner, "_bench")

    def inductor(module: ModuleType) -> None:
        launches.patch(patches, module.CachingAutotuner)
        if "run" in vars(module.DebugAutotuner):
            launches.patch(patches, module.DebugAutotuner)

    return {
        "triton.runtime.jit": jit,
        "triton.compiler.compiler": compiler,
        "triton.runtime.interpreter": interpreter,
        "triton.runtime.autotuner": autotuner,
        "torch._inductor.runtime.triton_heuristics": inductor,
    }


def _tune_unseen(patches: Patches, recorder: Recorder, owner: type, name: str) -> None:
    native = getattr(owner, name)

    def tune(*args: Any, **kwargs: Any) -> Any:
        with recorder.reading():
            return native(*args, **kwargs)

    patches.set(owner, name, tune)


class _Launches:
    """Records launches; the modes of each kernel are found once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._modes: dict[int, tuple[Any, Modes | None]] = {}

    def patch(self, patches: Patches, owner: type) -> None:
        """Record what a class of kernels launches by its method ``run``."""
        native, recorder = owner.run, self._recorder  # type: ignore[attr-defined]

        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("warmup") or kwargs.get("benchmark_run") or recorder.is_inside:
                return native(kernel, *args, **kwargs)
            with recorder.reading():
                result = recorder.platform.launch(native, kernel, *args, **kwargs)
            self._launched(getattr(kernel, "fn", None), kernel, args, kwargs)
            return result

        patches.set(owner, "run", run)

    def patch_compiled(self, patches: Patches, owner: type) -> None:
        """Record what a class of kernels launches that a program has compiled itself."""
        native, recorder = owner.__getitem__, self._recorder  # type: ignore[index]

        def with_grid(kernel: Any, grid: Any) -> Callable[..., Any]:
            launch = native(kernel, grid)

            def call(*args: Any, **kwargs: Any) -> Any:
                result = launch(*args, **kwargs)
                if not recorder.is_inside:
                    self._launched(getattr(kernel.src, "fn", None), kernel, args, {})
                return result

            return call

        patches.set(owner, "__getitem__", with_grid)

    def _launched(
        self, function: Any, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        function = kernel if text_of(function) is None else function  # Inductor's is around it
        label = f"triton {getattr(function, '__name__', 'kernel')}"
        with self._recorder.attempting(label):
            self._record(label, function, kernel, args, kwargs)

    def _record(
        self,
        label: str,
        function: Any,
        kernel: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        modes = self._of(function, label)
        names = getattr(function, "arg_names", ())
        signature = getattr(kernel, "triton_meta", {}).get("signature", {})
        if len(args) < len(names):  # the compiler's launcher takes no constants
            names = [name for name in names if signature.get(name) != "constexpr"]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        addresses = [n for n in (modes.cast if modes else ()) if isinstance(given.get(n), int)]
        if addresses or (modes is not None and not modes.is_complete):
            what = "uses addresses that it computes; what is there is not seen"
            self._recorder.recording.notice(f"{label} {what}")
        reads, writes = [], []
        for name, value in given.items():
            tensor = _tensor(value)
            if tensor is not None:
                if modes is None or name in modes.reads:
                    reads.append(tensor)
                if modes is None or name in modes.writes:
                    writes.append(tensor)
        self._recorder.launched(label, reads, writes, is_possible=True)

    def _of(self, function: Any, label: str) -> Modes | None:
        found = self._modes.get(id(function))
        if found is None:
            try:
                modes = modes_of(text_of(function) or "", scope_of(function))
            except Exception as error:  # whatever the kernel is, the program goes on
                self._recorder.recording.notice(f"{label}: {_ALL} ({first_line(error)})")
                modes = None
            found = self._modes[id(function)] = function, modes
        return found[1]


def _tensor(value: Any) -> Any:
    """Return the tensor of an argument, also of a descriptor of one; None of a number."""
    value = getattr(value, "base", value) if not hasattr(value, "untyped_storage") else value
    return value if hasattr(value, "untyped_storage") else None
