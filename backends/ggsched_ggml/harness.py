"""What the conformance kit needs to know: an assertion of ggml ends the process."""

from collections.abc import Mapping
from typing import Any, Final

from ggsched_ggml import driver

_QUIET: Final = ("ggml_version", "ggml_log_set", "ggml_backend_dev_get_props",
                 "ggml_backend_load_all_from_path")  # fmt: skip


class CInterface:
    """The library as programs in C call it; see ``ggsched_testing.conformance.c_program``."""

    signatures: Final[Mapping[str, str]] = {
        name: signature
        for name, signature in {**driver.FUNCTIONS, **driver.OPS, "set_strides": "vpS"}.items()
        if name not in _QUIET
    }
    reads: Final = {"ggml_backend_tensor_set_async": (2, 4),
                    "ggml_backend_dev_buffer_from_host_ptr": (1, 2)}  # fmt: skip
    writes: Final = {"ggml_backend_tensor_get_async": (2, 4, 0)}
    synchronize: Final = "ggml_backend_synchronize"
    bases: Final = ("ggml_backend_buffer_get_base",)
    shared: Final = ("ggml_init", "ggml_backend_dev_get", "ggml_backend_dev_init",
                     "ggml_backend_dev_buffer_type")  # fmt: skip
    makers: Final = ("ggml_backend_graph_plan_create",)
    frees: Final = tuple(name for name in driver.FUNCTIONS if name.endswith("_free"))
    prologue: Final = """\
// cc -I GGML/include FILE.c -L GGML/lib -lggml -lggml-base
#include <math.h>
#include <stdio.h>
#include "ggml.h"
#include "ggml-backend.h"

int main(void) {
    ggml_backend_load_all();"""

    @property
    def functions(self) -> driver.Library:
        """The library that devices of this process use."""
        return driver.loaded()

    def literal(self, code: str, value: Any) -> str:
        """Return parameters of a context, or strides."""
        if code == "I":
            return f"(struct ggml_init_params) {{{value[0]}, NULL, true}}"
        return " ".join(map(str, value))

    def statement(self, name: str, args: list[str]) -> str | None:
        """Return how strides are set."""
        if name != "set_strides":
            return None
        nb = f"((struct ggml_tensor *) {args[0]})->nb"
        return " ".join(f"{nb}[{i}] = {n};" for i, n in enumerate(args[1].split()))


HARNESS: Final = {"is_isolated": True, "c_library": CInterface()}
