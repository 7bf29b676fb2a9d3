"""The connection to a cluster, made in bounded time."""

import socket
from contextlib import suppress
from typing import Final

import ray
from ray.exceptions import RayError

from ggsched.errors import BackendUnavailable

ANSWER_S: Final = 10.0
"""How long a cluster may take to answer; Ray itself waits for ever."""

_HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""What a client of HTTP/2, which Ray speaks, sends first; any server of it answers."""

_START: Final = "start one: ray start --head; on the others: ray start --address=HEAD:6379"


def connect(address: str) -> None:
    """Connect to a cluster, unless this process is connected.

    Args:
        address: ``HOST:PORT``, or what else ``ray.init`` takes.

    Raises:
        BackendUnavailable: there is no cluster, or it does not answer.
    """
    if ray.is_initialized():
        return
    try:
        _require_answer(address)
        ray.init(address=address, log_to_driver=False, logging_level="CRITICAL")
        _stop_printing()
    except (OSError, RuntimeError, ValueError, RayError) as error:
        what = f"no Ray cluster at {address!r}"
        raise BackendUnavailable(
            what, where="ray://", why=first_line(error), hint=_START
        ) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error of Ray that says anything."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")


def _stop_printing() -> None:
    """End Ray's thread that prints logs of lost nodes into stdout, as Ray does when it ends.

    Ray has no option for it. A version without these names prints on.
    """
    with suppress(AttributeError):
        worker = ray._private.worker.global_worker
        stop, source, printer = (
            worker.threads_stopped,
            worker.gcs_error_subscriber,
            worker.listener_thread,
        )
        stop.set()
        source.close()
        printer.join(ANSWER_S)


def _require_answer(address: str) -> None:
    """Raise ``OSError`` unless a server answers at ``HOST:PORT``; other addresses are Ray's."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as server:
        server.sendall(_HELLO)
        try:
            answer = server.recv(1)
        except TimeoutError as error:
            raise TimeoutError(f"it does not answer within {ANSWER_S:g} s") from error
    if not answer:
        raise ConnectionError("what listens there is not a Ray cluster")
