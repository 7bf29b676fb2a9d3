"""Exceptions that come from outside of the call that they leave: from handlers of signals."""

import signal
from functools import partial
from types import CodeType


def is_interrupt(error: BaseException) -> bool:
    """Whether an error comes from outside of the call that it left: from a handler of a signal.

    It is the call's own otherwise. ``KeyboardInterrupt`` is one whoever raises it.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        return True
    codes = {code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    traced = error.__traceback__
    while traced is not None and codes:
        if traced.tb_frame.f_code in codes:
            return True
        traced = traced.tb_next
    return False


def code_of(handler: object) -> CodeType | None:
    """Return the code of a Python function, method, partial or callable object."""
    while isinstance(handler, partial):
        handler = handler.func
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = handler.__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
