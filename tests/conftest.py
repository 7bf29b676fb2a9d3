"""Ground for all tests: one BLAS thread, Hypothesis profiles, nothing left behind."""

import os
import sys

# Before numpy is imported, which is when each BLAS reads them.
for _library in ("OPENBLAS", "OMP", "MKL", "BLIS", "VECLIB_MAXIMUM", "NUMEXPR"):
    os.environ.setdefault(f"{_library}_NUM_THREADS".replace("MAXIMUM_NUM", "MAXIMUM"), "1")

# Results are compared with exact ones; tests of rounded activations request them.
os.environ.setdefault("GGSCHED_ACTIVATIONS", "f32")

# PoCL takes half as long to compile without optimisation; `make test-long` compiles with it.
if os.environ.get("HYPOTHESIS_PROFILE") != "nightly":
    os.environ.setdefault("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")

# Whoever keeps bytecode out of the source tree would have each worker and each of hundreds of child
# processes compile everything again. It is kept where pytest keeps its own files.
if sys.dont_write_bytecode and sys.pycache_prefix is None:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "d", "pyc")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

import gc
import random
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from ggsched.errors import GgschedError
from tests.support.registries import Registries

THREAD_PREFIX = "ggsched"
GRACE_S = 5.0
COLLECTIONS = pytest.StashKey[int]()
"""How many full garbage collections there were when live objects were last excluded."""

# A deadline would measure the machine's load; the timeout of pytest-timeout catches a hang.
EXAMPLES = 15
"""Of each property, where its test asks for no other number; `make test-long` tries 2,000."""
settings.register_profile("dev", max_examples=EXAMPLES, deadline=None)
settings.register_profile(
    "ci",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "nightly", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Run named files and single tests in this process, where a debugger and ``-s`` work."""
    return 0 if all(".py" in arg for arg in config.args) else None


def _opencl_is_missing() -> str:
    """Return why the device opencl:0 cannot be used, or nothing if it can."""
    try:
        from ggsched_opencl import open_backend

        open_backend()
    except GgschedError as error:
        return str(error)
    return ""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that shuffles tests."""
    parser.addoption("--shuffle", metavar="SEED", help="run files, and tests in them, shuffled")


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say how to repeat an order."""
    seed = config.getoption("--shuffle")
    return f"shuffled: --shuffle={seed}" if seed else None


def _shuffle(items: list[pytest.Item], seed: str) -> None:
    """Shuffle files and the tests of each; a file stays together for the sake of its fixtures."""
    by_file: dict[Path, list[pytest.Item]] = {}
    for item in items:
        by_file.setdefault(item.path, []).append(item)
    chance = random.Random(seed)
    files = list(by_file.values())
    chance.shuffle(files)
    for tests in files:
        chance.shuffle(tests)
    items[:] = [item for tests in files for item in tests]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle, if asked to; skip what needs OpenCL where no device of it can be used."""
    if seed := config.getoption("--shuffle"):
        _shuffle(items, seed)
    asking = [item for item in items if _asks_for_opencl(item)]
    if asking and (why := _opencl_is_missing()):
        for item in asking:
            item.add_marker(pytest.mark.skip(reason=why))
    # Each process that opens OpenCL reads all programs that PoCL has kept, thousands of this one's
    # tests among them: a second. Child processes need few, and keep them in a folder of their own.
    if cache := getattr(config, "cache", None):
        os.environ["POCL_CACHE_DIR"] = str(cache.mkdir("pocl"))


def pytest_collection(session: pytest.Session) -> None:
    """Make no collections of garbage while tests are collected: hardly anything is."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exclude what collection made from garbage collection; it lives until the process ends.

    The items of the whole suite are half a million objects. Each full collection, of which a run of
    the conformance kit causes about 25, would visit all of them. Graphs and plans are thousands of
    objects without cycles, so what comes later is collected when more of it has piled up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Exclude what is alive from garbage collection, behind a test and every few full collections.

    Each visits what was imported and cached since tests were collected: up to 0.2 s.
    """
    done = yield
    if gc.get_stats()[2]["collections"] > item.config.stash.get(COLLECTIONS, 0) + 3:
        gc.collect()
        gc.freeze()
        item.config.stash[COLLECTIONS] = gc.get_stats()[2]["collections"]
    return done


def _asks_for_opencl(item: pytest.Item) -> bool:
    if item.get_closest_marker("opencl") is not None:
        return True
    given = getattr(item, "callspec", None)
    return given is not None and any("opencl" in str(value) for value in given.params.values())


def _workers() -> set[threading.Thread]:
    return {t for t in threading.enumerate() if t.name.startswith(THREAD_PREFIX)}


@pytest.fixture(autouse=True, scope="session")
def no_rates_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let nothing depend on a calibration that whoever runs the tests has made."""
    nowhere = tmp_path_factory.mktemp("cache") / "none" / "rates.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ggsched.calibrate.cache.default_path", lambda: nowhere)
        yield


@pytest.fixture(scope="session")
def compiled_kernels(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return where kernels that are compiled for the host are kept, by hash, from run to run.

    Workers share it. ``make clean`` removes it with the rest of ``.pytest_cache``.
    """
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    if cache is None:  # -p no:cacheprovider
        return tmp_path_factory.mktemp("kernels")
    return cache.mkdir("kernels")


@pytest.fixture(autouse=True)
def nothing_left_registered() -> Iterator[None]:
    """Fail a test that leaves an op or a converter registered, and remove it.

    What a fixture of a wider scope registered before the test is not its own.
    """
    before = Registries.now()
    yield
    if differed := before.restore():
        pytest.fail(f"the test left registered, or removed: {', '.join(differed)}")


@pytest.fixture
def registries_restored() -> Iterator[None]:
    """Undo what a test registers on purpose."""
    before = Registries.now()
    yield
    before.restore()


@pytest.fixture(autouse=True)
def no_thread_left_behind() -> Iterator[None]:
    """Fail a test that leaves a worker thread of ggsched running.

    Threads that a fixture of a wider scope started before the test are not its own.
    """
    before = _workers()
    yield
    deadline = time.monotonic() + GRACE_S
    left = _workers() - before
    for thread in left:
        thread.join(max(0.0, deadline - time.monotonic()))
    alive = sorted(t.name for t in left if t.is_alive())
    if alive:
        pytest.fail(f"the test left threads behind, close their devices: {', '.join(alive)}")
