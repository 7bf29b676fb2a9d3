"""LLVM: object code of modules of IR, and their functions' addresses. Needs llvmlite."""

import threading
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import llvmlite.binding as llvm

from ggsched_cpu.kernels.target import Target

OPTIMISATION: Final = 2
LLVM_VERSION: Final = ".".join(str(n) for n in llvm.llvm_version_info)

_LOCK: Final = threading.Lock()
"""LLVM may be used by one thread at a time."""


def host_target() -> Target:
    """Return the processor that this process runs on."""
    features = llvm.get_host_cpu_features().flatten()
    return Target(llvm.get_process_triple(), llvm.get_host_cpu_name(), features)


def object_code(ir: str, target: Target) -> bytes:
    """Compile a module.

    Raises:
        RuntimeError: LLVM refuses it.
    """
    with _LOCK:
        machine = _machine(target)
        module = _optimised(ir, machine, target)
        code: bytes = machine.emit_object(module)
        return code


def assembly(ir: str, target: Target) -> str:
    """Return the instructions of a module, for people and tests."""
    with _LOCK:
        machine = _machine(target)
        text: str = machine.emit_assembly(_optimised(ir, machine, target))
        return text


def _machine(target: Target) -> Any:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=OPTIMISATION, reloc="pic", jit=True
    )


def _optimised(ir: str, machine: Any, target: Target) -> Any:
    module = llvm.parse_assembly(ir)
    module.triple = target.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(OPTIMISATION)
    # Kernels are written with vectors, and unrolled where that pays.
    options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


class Linker:
    """Loads object code into this process."""

    def __init__(self) -> None:
        with _LOCK:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            self._jit = llvm.create_lljit_compiler()
        self._libraries: list[Any] = []
        self._names = count()

    def load(self, code: bytes, symbols: Sequence[str]) -> dict[str, int]:
        """Return the addresses of functions; the code stays as long as the linker does.

        Raises:
            RuntimeError: it is not object code, or lacks a function.
        """
        with _LOCK:
            builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
            for symbol in symbols:
                builder.export_symbol(symbol)
            library = builder.link(self._jit, f"kernels{next(self._names)}")
            self._libraries.append(library)
            return {symbol: library[symbol] for symbol in symbols}
