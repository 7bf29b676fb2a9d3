"""Experts are chosen from the best groups, as DeepSeek V2 and V3 define it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.ir.dtype import F32
from ggsched.ir.tensor import Role
from ggsched_llm.layers import BatchShape, ModelBuilder
from ggsched_llm.load import load_model
from ggsched_testing.oracle.interpreter import run_oracle
from tests.models.reference_models import write_reference


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("groups") / "m.gguf"
    return load_model(write_reference(path, "deepseek3-f32")).spec


def chosen(scores, groups, used, count, deciding):
    """Return the experts of each token, the best one first."""
    members = scores.reshape(len(scores), groups, -1)
    total = np.sort(members, axis=-1)[..., -deciding:].sum(axis=-1)
    best = np.argsort(-total, axis=-1)[:, :used]
    keep = np.zeros(total.shape, bool)
    np.put_along_axis(keep, best, True, axis=-1)
    masked = np.where(keep[..., None], members, -np.inf).reshape(scores.shape)
    return np.argsort(-masked, axis=-1)[:, :count]


@given(data=st.data(), by_sigmoid=st.booleans(), seed=st.integers(0, 1 << 30))
@settings(max_examples=15)
def test_experts_of_the_best_groups(spec, data, by_sigmoid, seed):
    groups, per = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 9))
    used = data.draw(st.integers(1, groups - 1))
    count = data.draw(st.integers(1, used * per))
    spread = data.draw(st.sampled_from([1e-25, 1e-3, 1.0, 1e4]))
    shape = (data.draw(st.integers(1, 5)), groups * per)
    scores = np.random.default_rng(seed).uniform(-spread, spread, shape).astype(np.float32)
    hp = replace(
        spec.hparams,
        n_expert=groups * per,
        n_expert_groups=groups,
        n_groups_used=used,
        routes_by_sigmoid=by_sigmoid,
    )
    kit = ModelBuilder(replace(spec, hparams=hp), BatchShape(1, 1, 1, 1, F32), "groups")
    x = kit.g.input("scores", scores.shape)
    graph = kit.g.build(kit.g.top_k(kit._best_groups(x), count))
    idle = {t.name: np.zeros(t.shape, np.int32) for t in graph.tensors if t.role is Role.INPUT}
    (found,) = run_oracle(graph, {**idle, "scores": scores}).values()
    deciding = min(2, per) if by_sigmoid else 1
    np.testing.assert_array_equal(found, chosen(scores, groups, used, count, deciding))
