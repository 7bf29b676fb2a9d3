"""What is measured is warm: nothing is bound or captured in a repetition that counts."""

from collections import Counter

import pytest

from ggsched.config import Settings
from ggsched.run.executor import Executor
from ggsched_llm import speed
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.speed import SpeedTest
from tests.models.helpers import ORACLE

TESTS = (
    SpeedTest(16, 0),
    SpeedTest(13, 0, depth=8),
    SpeedTest(0, 3),
    SpeedTest(4, 2, parallel=3),
    SpeedTest(24, 1),
)


@pytest.mark.parametrize("devices", [("cpu:0",), ("sim:0", "sim:1")], ids=len)
def test_plans_are_warm_before_anything_is_measured(monkeypatch, devices):
    """Those that run once, those that take turns with an alternate, and sequences together.

    A plan enqueues its commands in its first run and is captured in its second one.
    """
    starts, runs = Counter(), []
    start, timed = Executor.start, speed._timed

    def counted(self, inputs):
        starts[self] += 1
        runs[-1][1].append(starts[self])
        start(self, inputs)

    def noted(session, test, tokens):
        runs.append((test, []))
        return timed(session, test, tokens)

    monkeypatch.setattr(Executor, "start", counted)
    monkeypatch.setattr(speed, "_timed", noted)
    options = SessionOptions(n_ctx=192, n_batch=8, n_ubatch=4, n_parallel=3, pipelining="on")
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    with Session(model, list(devices), options, settings=Settings()) as session:
        found = list(speed.measure(session, TESTS, 2))
    assert [(each.test, len(each.seconds)) for each in found] == [(test, 2) for test in TESTS]
    for test in TESTS:
        own = [min(counts) for other, counts in runs if other == test]
        assert min(own[-2:]) > 2, (test, own)
        assert len(own) <= 2 + speed.MAX_WARM_UPS
