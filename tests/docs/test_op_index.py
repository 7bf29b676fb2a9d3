"""The index of ops is what ops and backends declare."""

import pytest

from ggsched.backend.registry import discover
from ggsched.ir.ops import BUILT_IN
from ggsched.ops.nd import library
from tests.docs.op_index import GROUPS, KEYS, filled, kernels
from tests.meta.repository import ROOT, name_of

PAGE = ROOT / "docs" / "reference" / "op-index.md"


def test_the_page_is_current():
    text = PAGE.read_text(encoding="utf-8")
    assert text == filled(text), f"run: python -m tests.docs.op_index {name_of(PAGE)}"
    assert all(f"| `{op}` |" in text for op in (*BUILT_IN, *library()))


@pytest.mark.parametrize("backend", ["cpu", "opencl", "cuda"])
def test_devices_declare_what_it_says(backend):
    (status,) = (s for s in discover() if s.name == backend)
    if not status.devices or status.devices[0].facts is None:
        pytest.skip(status.reason or "no device")
    facts = status.devices[0].facts
    own = {k for k in facts.ops if k.startswith("nd.") or k.partition(":")[0] in BUILT_IN}
    assert own <= set(KEYS[backend])
    assert not [k for k in set(KEYS[backend]) - own if k.partition(":")[0] in BUILT_IN]
    assert facts.fusions <= set(GROUPS[backend])


def test_samples():
    assert kernels("cpu", "nd.conv") >= {"f32", "f16"}
    assert kernels("opencl", "nd.conv") == {"f32", "f16"}
    assert kernels("cuda", "nd.conv") == {"f32", "f16"}
    assert "q4_k" in kernels("cuda", "mul_mat")
