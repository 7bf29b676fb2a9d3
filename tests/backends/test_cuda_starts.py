"""What of starting CUDA takes place while something else does, without a GPU."""

import threading

import pytest

from ggsched.errors import BackendUnavailable

pytest.importorskip("cuda.bindings", reason="cuda-bindings are in the extra 'nvrtc'")


@pytest.fixture
def handles(monkeypatch):
    """Return a maker of ``BlasHandles`` on a cuBLAS that counts, who made some, and who entered."""
    from ggsched_cuda import driver
    from ggsched_cuda.blas_handles import BlasHandles
    from ggsched_cuda_kernels.blas import driver as blas

    makers, entered = [], []

    def make_handle():
        makers.append(threading.current_thread().name)
        return len(makers)

    def enter(context):
        entered.append((context, threading.current_thread().name))

    monkeypatch.setattr(driver, "enter", enter)
    monkeypatch.setattr(blas, "make_handle", make_handle)
    return BlasHandles("context"), makers, entered


def test_the_first_handle_is_made_by_a_thread_and_the_next_by_who_asks(handles):
    made, makers, entered = handles
    made.begin()
    made.begin()
    assert [made.take(), made.take()] == [1, 2]
    assert makers == ["ggsched cublas handle", threading.current_thread().name]
    assert entered == [("context", "ggsched cublas handle")]


def test_without_a_beginning_it_is_made_by_who_asks(handles):
    made, makers, _ = handles
    made.join()
    assert made.take() == 1
    assert makers == [threading.current_thread().name]


def test_what_went_wrong_in_the_thread_is_raised_by_who_asks(handles, monkeypatch):
    from ggsched_cuda_kernels.blas import driver as blas

    def absent():
        raise BackendUnavailable("cuBLAS cannot be started")

    monkeypatch.setattr(blas, "make_handle", absent)
    made, *_ = handles
    made.begin()
    with pytest.raises(BackendUnavailable, match="cannot be started"):
        made.take()


def test_the_driver_starts_beside_the_imports(monkeypatch):
    from ggsched_cuda import driver, open_backend

    threads = []

    def find_gpus():
        threads.append(threading.current_thread())
        return ()

    monkeypatch.setattr(driver, "find_gpus", find_gpus)
    open_backend()
    assert threads[0] is not threading.current_thread()
    assert not threads[0].is_alive()
