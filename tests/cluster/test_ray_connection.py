"""Clusters that are not there: refused, silent, and something else at the address."""

import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from ggsched.errors import BackendUnavailable
from ggsched_ray import connection
from ggsched_ray.connection import connect
from ggsched_ray.members import ACTOR_VARIABLES, _remedy


@contextmanager
def server(answers):
    """Yield the address of something that accepts, and closes or says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        over = threading.Event()

        def serve():
            source, _ = door.accept()
            with source:
                if answers:
                    source.recv(1)
                else:
                    over.wait()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{door.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


@pytest.fixture
def no_ray(monkeypatch):
    """Fail where Ray, which waits for ever, is called."""

    def init(**_):
        raise AssertionError("ray.init was called")

    monkeypatch.setattr("ray.init", init)


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer(scheme, monkeypatch):
    monkeypatch.setattr(connection, "ANSWER_S", 0.05)
    with (
        server(answers=False) as address,
        pytest.raises(BackendUnavailable, match=r"no Ray cluster at .*not answer within 0\.05"),
    ):
        connect(scheme + address)


@pytest.mark.usefixtures("no_ray")
def test_something_that_is_not_a_cluster():
    with server(answers=True) as address, pytest.raises(BackendUnavailable, match="no Ray cluster"):
        connect(address)


@pytest.mark.usefixtures("no_ray")
def test_nothing_at_the_address():
    with socket.create_server(("127.0.0.1", 0)) as door:
        address = f"127.0.0.1:{door.getsockname()[1]}"
    with pytest.raises(BackendUnavailable, match=rf"no Ray cluster at '{address}': .*refused"):
        connect(address)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("ModuleNotFoundError: No module named 'ggsched_ray'", "pip install"),
        ("The actor died because its node has died.", "ray status"),
    ],
)
def test_only_what_is_not_installed_is_to_be_installed(text, hint):
    assert hint in _remedy(RuntimeError(text))


def test_actors_see_the_gpus_of_their_node():
    assert ACTOR_VARIABLES["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "0"
    assert ACTOR_VARIABLES["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"


def test_the_thread_that_prints_logs_of_nodes_is_ended(monkeypatch):
    """It writes into stdout, between the results."""
    stop, closed = threading.Event(), threading.Event()
    printer = threading.Thread(target=closed.wait)
    printer.start()
    source = SimpleNamespace(close=closed.set)
    worker = SimpleNamespace(
        threads_stopped=stop, gcs_error_subscriber=source, listener_thread=printer
    )
    monkeypatch.setattr("ray._private.worker.global_worker", worker)
    connection._stop_printing()
    assert stop.is_set()
    assert not printer.is_alive()
    monkeypatch.setattr("ray._private.worker.global_worker", SimpleNamespace())
    connection._stop_printing()  # another version of Ray
