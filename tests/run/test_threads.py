"""One call at a time: a scheduler that is used while a call runs refuses, and changes nothing.

A kernel or a callback holds one call in the middle while the test makes others.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from ggsched.config import Settings
from ggsched.errors import DeviceFault, UsageError
from ggsched.ir.builder import GraphBuilder
from ggsched.run.call_guard import CallGuard
from ggsched.run.tensor_interop import Exchange
from ggsched.scheduler import Scheduler
from tests.run.devices import Failing, Latch, TestDevice, assert_released
from tests.run.graphs import N, W, X, chain, chain_result, counter, harmless, only, plus_weight

HARMLESS, PLUS, COUNTER = harmless(), plus_weight(), counter()
STATE = COUNTER.named("s")


def opened(**device):
    made = TestDevice(**device)
    return made, Scheduler([made], weights={"w": W}, settings=Settings())


@contextmanager
def thread_in(work, latch, name="worker-a"):
    """Run work on another thread, which a latch holds in the middle; yield where its result goes.

    At the end of the block the thread is released, and has ended.
    """
    results = []

    def target():
        try:
            results.append(work())
        except Exception as error:  # the test looks at it
            results.append(error)

    thread = threading.Thread(target=target, name=name)
    thread.start()
    try:
        assert latch.reached.wait(60)
        yield results
    finally:
        latch.free.set()
        thread.join(60)
    assert not thread.is_alive()


def refused(call):
    """Return the message with which a call is refused."""
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value)


CALLS = {
    "Scheduler.plan": lambda s: s.plan(HARMLESS),
    "Scheduler.run": lambda s: s.run(HARMLESS, {"x": X}),
    "Scheduler.start": lambda s: s.start(HARMLESS, {"x": X}),
    "Scheduler.prepare": lambda s: s.prepare(HARMLESS),
    "Scheduler.reload_weights": lambda s: s.reload_weights(["w"]),
    "Scheduler.forget": lambda s: s.forget(HARMLESS),
    "Scheduler.keep_plans": lambda s: s.keep_plans(1),
    "Scheduler.clear_states": lambda s: s.clear_states(),
    "Scheduler.free_nbytes": lambda s: s.free_nbytes(),
    "Scheduler.reset": lambda s: s.reset(),
    "Scheduler.close": lambda s: s.close(),
    "Exchange.give": lambda s: s.exchange.give(STATE),
    "Exchange.set_state": lambda s: s.exchange.set_state(STATE, X),
}
MAY_NEST = {"Scheduler.plan", "Scheduler.free_nbytes", "Exchange.give"}
ANY_TIME = {
    "Scheduler.draft",
    "Scheduler.planned",
    "Scheduler.planned_graph",
    "Scheduler.resident_nbytes",
    "Scheduler.takes_turns",
}


def test_every_public_method_is_one_or_the_other():
    public = {
        f"{kind.__name__}.{name}"
        for kind in (Scheduler, Exchange)
        for name, member in vars(kind).items()
        if callable(member) and not name.startswith("_")
    }
    assert public == CALLS.keys() | ANY_TIME


@pytest.mark.parametrize("name", CALLS)
def test_a_call_while_another_thread_is_in_a_run(name):
    latch = Latch()
    device, scheduler = opened(gelu=latch)
    graph, wanted = chain()
    with scheduler:
        scheduler.run(PLUS, {"x": X})
        scheduler.run(COUNTER, {})
        exported = scheduler.exchange.give(STATE)
        state = exported.numpy().copy()
        with thread_in(lambda: scheduler.run(graph, {"x": X}, wanted), latch) as results:
            message = refused(lambda: CALLS[name](scheduler))
            again = refused(exported.sync)
        assert message.startswith(f"{name}: called on thread 'MainThread' (")
        assert "while thread 'worker-a' (" in message
        assert " is in Scheduler.run: a scheduler and its sessions serve one call at" in message
        assert "use a scheduler per thread" in message
        assert again.startswith("sync of 's': called on thread 'MainThread'")
        # Neither has changed anything, and now the other thread is through the call is legal.
        np.testing.assert_allclose(only(graph, results[0]), chain_result(X), rtol=1e-6)
        np.testing.assert_array_equal(exported.numpy(), state)
        found = only(PLUS, scheduler.run(PLUS, {"x": X}))
        np.testing.assert_array_equal(found, (X + W) * np.float32(2))
        CALLS[name](scheduler)
    assert_released(device)


@pytest.mark.parametrize("name", CALLS)
def test_a_run_while_another_thread_is_in_a_call(name):
    """Held before the call does anything, so that each of them is tried."""
    device, scheduler = opened()
    latch = Latch()
    with scheduler:
        scheduler.run(PLUS, {"x": X})
        scheduler.run(COUNTER, {})
        usual = scheduler.guard._slot

        class Latched(dict):
            """The slot of the guard, in which a thread stops once its call is there."""

            def setdefault(self, key, value):
                holder = usual.setdefault(key, value)
                if threading.current_thread().name == "worker-a" and not latch.reached.is_set():
                    latch.reached.set()
                    assert latch.free.wait(60)
                return holder

            def get(self, key):
                return usual.get(key)

            def __delitem__(self, key):
                del usual[key]

            def __setitem__(self, key, value):
                usual[key] = value

        scheduler.guard._slot = Latched()
        with thread_in(lambda: CALLS[name](scheduler), latch) as results:
            message = refused(lambda: scheduler.run(HARMLESS, {"x": X}))
        assert message.startswith("Scheduler.run: called on thread 'MainThread' (")
        assert f"is in {name}: " in message
        assert not isinstance(results[0], Exception)
    assert_released(device)


def test_what_may_be_read_at_any_time():
    latch = Latch()
    _, scheduler = opened(gelu=latch)
    graph, wanted = chain()
    with scheduler:
        scheduler.run(PLUS, {"x": X})
        with thread_in(lambda: scheduler.run(graph, {"x": X}, wanted), latch):
            assert scheduler.resident_nbytes("weight") == {"test:0": 4 * N}
            assert scheduler.plan_cache.misses == 2
            assert scheduler.measured == ()
            assert scheduler.expert_ledger is not None
            assert scheduler.draft(HARMLESS).graph == HARMLESS.digest


def test_threads_take_turns():
    _, scheduler = opened()
    with scheduler:
        for turn in range(1, 5):
            with ThreadPoolExecutor(1, thread_name_prefix=f"turn-{turn}") as pool:
                found = pool.submit(scheduler.run, COUNTER, {}).result(60)
            np.testing.assert_array_equal(only(COUNTER, found), np.full(N, turn, np.float32))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(scheduler.close).result(60)


@pytest.fixture
def eager_switches():
    """Let threads interrupt each other within a run, which takes less than a usual time slice."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
@pytest.mark.parametrize("is_async", [False, True])
def test_two_threads_at_once_get_right_results_or_none(is_async):
    """What 55 % of runs got wrong: two threads start together, on one plan with one input slot."""
    rounds, barrier = 100, threading.Barrier(2, timeout=60)
    _, scheduler = opened(is_async=is_async)
    wrong, served, refusals = [], [], []

    def work(me):
        for k in range(rounds):
            x = np.full(N, 2 * k + me, np.float32)
            barrier.wait()
            try:
                found = only(HARMLESS, scheduler.run(HARMLESS, {"x": x}))
            except UsageError as error:
                refusals.append(str(error))
                continue
            served.append(me)
            if not np.array_equal(found, 3 * x):
                wrong.append((me, k))

    with scheduler, ThreadPoolExecutor(2, thread_name_prefix="pair") as pool:
        for future in [pool.submit(work, me) for me in (0, 1)]:
            future.result(120)
    assert not wrong
    assert len(served) >= rounds  # of two that meet, one is served
    assert len(served) + len(refusals) == 2 * rounds
    assert all("'pair_0'" in text and "'pair_1'" in text for text in refusals)


def test_the_end_of_a_block_while_another_thread_runs():
    """Nothing is closed under a thread; what is left can be closed afterwards."""
    latch = Latch()
    device, scheduler = opened(gelu=latch)
    graph, wanted = chain()
    with thread_in(lambda: scheduler.run(graph, {"x": X}, wanted), latch) as results:

        def block():
            with scheduler:
                pass

        assert "Scheduler.close: called on thread 'MainThread'" in refused(block)
    np.testing.assert_allclose(only(graph, results[0]), chain_result(X), rtol=1e-6)
    scheduler.close()
    assert_released(device)


class TestErrors:
    """A call that fails lets the next one in."""

    def test_of_the_caller_and_of_a_device(self):
        _, scheduler = opened(gelu=Failing(RuntimeError("broken")))
        graph, wanted = chain()
        with scheduler:
            with pytest.raises(UsageError, match="no value for input"):
                scheduler.run(HARMLESS, {})
            with pytest.raises(DeviceFault):
                scheduler.run(graph, {"x": X}, wanted)
            with ThreadPoolExecutor(1) as pool:
                pool.submit(scheduler.reset).result(60)
            np.testing.assert_array_equal(only(HARMLESS, scheduler.run(HARMLESS, {"x": X})), 3 * X)

    def test_an_interrupt(self):
        def stop(name, nbytes):
            raise KeyboardInterrupt

        scheduler = Scheduler([TestDevice()], weights={"w": W}, progress=stop, settings=Settings())
        with scheduler:
            with pytest.raises(KeyboardInterrupt):
                scheduler.run(PLUS, {"x": X})
            scheduler.run(HARMLESS, {"x": X})

    @pytest.mark.parametrize("name", CALLS)
    def test_an_interrupt_while_a_call_begins(self, name):
        """Whatever raises once the guard is taken, it is not left held."""

        class Slot(dict):
            def setdefault(self, key, value):
                super().setdefault(key, value)
                raise KeyboardInterrupt

        _, scheduler = opened()
        with scheduler:
            usual, scheduler.guard._slot = scheduler.guard._slot, Slot()
            with pytest.raises(KeyboardInterrupt):
                CALLS[name](scheduler)
            assert scheduler.guard._slot == {}
            scheduler.guard._slot = usual


class TestCallbacks:
    """User code that a call runs may ask and plan, not run."""

    @pytest.mark.parametrize("name", CALLS)
    def test_calls_of_a_source_of_weights(self, name):
        seen = []

        def source(wanted):
            try:
                CALLS[name](scheduler)
            except UsageError as error:
                seen.append(str(error))
            return W

        with Scheduler([TestDevice()], weights=source, settings=Settings()) as scheduler:
            scheduler.run(COUNTER, {})
            found = only(PLUS, scheduler.run(PLUS, {"x": X}))
            np.testing.assert_array_equal(found, (X + W) * np.float32(2))
        if name in MAY_NEST:
            assert seen == []
        else:
            (message,) = seen
            assert message.startswith(f"{name}: called from inside Scheduler.run: a callback on ")
            assert "call it after Scheduler.run has returned" in message

    def test_progress_may_look(self):
        seen = []

        def progress(name, nbytes):
            seen.append((scheduler.resident_nbytes("weight"), scheduler.plan_cache.misses))

        scheduler = Scheduler([TestDevice()], weights={"w": W}, progress=progress)
        with scheduler:
            scheduler.run(PLUS, {"x": X})
        assert seen == [({"test:0": W.nbytes}, 1)], "the memory is taken before it is filled"

    def test_a_callback_that_waits_for_another_thread_does_not_hang(self):
        """The other thread is refused at once, so that the callback goes on."""
        seen = []

        def source(name):
            with ThreadPoolExecutor(1, thread_name_prefix="helper") as pool:
                call = pool.submit(scheduler.run, HARMLESS, {"x": X})
                seen.append(str(call.exception(60)))
            return W

        with Scheduler([TestDevice()], weights=source, settings=Settings()) as scheduler:
            scheduler.run(PLUS, {"x": X})
        assert "called on thread 'helper_0'" in seen[0]
        assert "while thread 'MainThread'" in seen[0]

    def test_an_export_as_an_input_of_its_own_scheduler(self):
        """It waits for the work on it from inside the run that takes it."""
        _, scheduler = opened()
        with scheduler:
            scheduler.run(COUNTER, {})
            exported = scheduler.exchange.give(STATE)
            found = only(HARMLESS, scheduler.run(HARMLESS, {"x": exported}))
            np.testing.assert_array_equal(found, np.full(N, 3, np.float32))

    def test_a_run_by_the_dlpack_of_an_input(self):
        class Meddling:
            def __dlpack_device__(self):
                return X.__dlpack_device__()

            def __dlpack__(self, **options):
                scheduler.run(COUNTER, {})
                return X.__dlpack__(**options)

        _, scheduler = opened()
        with scheduler:
            message = refused(lambda: scheduler.run(HARMLESS, {"x": Meddling()}))
            assert message.startswith("x: called from inside Scheduler.run: ")
            found = only(COUNTER, scheduler.run(COUNTER, {}))
            np.testing.assert_array_equal(found, np.ones(N, np.float32))


def test_a_weight_that_two_threads_want_is_loaded_once():
    latch, asked = Latch(), []

    def source(name):
        asked.append(name)
        latch.reached.set()
        assert latch.free.wait(60)
        return W

    device = TestDevice()
    with Scheduler([device], weights=source, settings=Settings()) as scheduler:
        with thread_in(lambda: scheduler.run(PLUS, {"x": X}), latch, "loader") as results:
            assert "while thread 'loader'" in refused(lambda: scheduler.run(PLUS, {"x": X}))
        scheduler.run(PLUS, {"x": X})
        np.testing.assert_array_equal(only(PLUS, results[0]), (X + W) * np.float32(2))
    assert asked == ["w"]
    assert_released(device)


def test_schedulers_are_independent():
    latch = Latch()
    _, first = opened(gelu=latch)
    _, second = opened()
    graph, wanted = chain()
    with first, second, thread_in(lambda: first.run(graph, {"x": X}, wanted), latch):
        np.testing.assert_array_equal(only(HARMLESS, second.run(HARMLESS, {"x": X})), 3 * X)


class TestGuard:
    def test_calls_inside_an_open_one(self):
        guard = CallGuard()
        with guard.hold("outer", is_open=True):
            with (
                guard.hold("inner"),
                pytest.raises(UsageError, match="inside inner"),
                guard.hold("innermost"),
            ):
                pass
            with guard.hold("inner again"), guard.hold("a question", may_nest=True):
                pass
        with guard.hold("next"):
            pass

    def test_a_refused_call_holds_nothing(self):
        guard = CallGuard()
        with guard.hold("first"):
            for _ in range(2):
                with pytest.raises(UsageError), guard.hold("second"):
                    pass
        assert guard._slot == {}


def test_names_of_threads_are_quoted():
    latch = Latch()
    _, scheduler = opened(gelu=latch)
    graph, wanted = chain()
    with (
        scheduler,
        thread_in(lambda: scheduler.run(graph, {"x": X}, wanted), latch, "a\nb\x1b[2J"),
    ):
        assert r"'a\nb\x1b[2J'" in refused(lambda: scheduler.plan(HARMLESS))


def test_a_graph_that_is_built_inside_a_callback_is_no_call():
    def source(name):
        g = GraphBuilder("inside")
        assert scheduler.plan(g.build(g.silu(g.input("x", (N,))))).name
        return W

    with Scheduler([TestDevice()], weights=source, settings=Settings()) as scheduler:
        scheduler.run(PLUS, {"x": X})
        assert scheduler.plan_cache.misses == 2
