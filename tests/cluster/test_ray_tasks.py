"""The litmus corpus on two nodes of a Ray cluster: the verdicts of one process."""

import json

import pytest

pytest.importorskip("ray.cluster_utils")

from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched_testing.parallel import in_order
from ggsched_testing.spread import Spread
from tests.cluster.ray_nodes import cluster_of
from tests.mutants.plan_score import drawn_plans, plan_scores
from tests.mutants.score import mutation_score
from tests.mutants.table import MUTANTS
from tests.testing.test_parallel import CORPUS, judged

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(300),
]


def test_no_cluster_is_one_clear_error(monkeypatch, capsys):
    def refuse(**_):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("ray.init", refuse)
    assert main(["litmus", *CORPUS[:1], "--ray", "auto"]) == 3
    error = capsys.readouterr().err
    assert "no Ray cluster at 'auto'" in error
    assert "ray start --head" in error


@pytest.fixture(scope="module")
def address():
    with cluster_of("red", "blue") as cluster:
        yield cluster.address


def test_the_corpus_on_two_nodes(capsys, address):
    assert judged(capsys, "--ray", address) == judged(capsys)


def test_the_kit_on_two_nodes(capsys, address):
    def verdicts(*options):
        assert main(["conform", "sim:0", "--rules", "EVT-1,EVT-3", "--json", *options]) == 0
        cases = json.loads(capsys.readouterr().out)["cases"]
        return [(c["case"], c["verdict"], c["reason"]) for c in cases]

    assert verdicts("--ray", address) == verdicts()


def test_mutants_and_plans_on_two_nodes(address):
    """The kit's mutants, and mutants of plans, of which the explorer judges those not found."""
    mutants = [m for m in MUTANTS if m.rule == "EVT-3"]
    plans = drawn_plans(6)
    on_ray = Spread(ray=address)

    def said(spread):
        return [
            (j.mutant.name, [(r.case.name, r.reason) for r in j.killers])
            for j in mutation_score(mutants, spread=spread)
        ]

    assert said(on_ray) == said(Spread())
    assert list(plan_scores(plans, on_ray)) == list(plan_scores(plans))


def test_an_error_of_a_task_is_that_error(address):
    with pytest.raises(UsageError, match="no wonder"):
        list(in_order(refuse, range(2), ray=address))


def refuse(_):
    raise UsageError("no wonder")
