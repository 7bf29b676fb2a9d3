"""The litmus corpus on two nodes of a Ray cluster: the verdicts of one process."""

import pytest

pytest.importorskip("ray.cluster_utils")

from ggsched.cli.main import main
from tests.cluster.ray_nodes import cluster_of
from tests.testing.test_parallel import CORPUS, judged

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(300),
]


def test_the_corpus_on_two_nodes(capsys):
    with cluster_of("red", "blue") as cluster:
        on_ray = judged(capsys, "--ray", cluster.address)
    assert on_ray == judged(capsys)


def test_no_cluster_is_one_clear_error(monkeypatch, capsys):
    def refuse(**_):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("ray.init", refuse)
    assert main(["litmus", *CORPUS[:1], "--ray", "auto"]) == 3
    error = capsys.readouterr().err
    assert "no Ray cluster at 'auto'" in error
    assert "ray start --head" in error
