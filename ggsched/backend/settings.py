"""What a backend reads of the environment: variables of the table in ``ggsched.config``."""

import os
from typing import Any

from ggsched.config import VARIABLES, Settings


def setting(field: str) -> Any:
    """Return a field of ``Settings`` as the environment has it, by default that of ``Settings``.

    Raises:
        UsageError: the variable has an invalid value.
    """
    variable = next(v for v in VARIABLES if v.field == field)
    text = os.environ.get(variable.name, "").strip()
    return variable.read(text) if text else getattr(Settings(), field)
