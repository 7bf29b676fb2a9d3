"""Functions of PyTorch, in a few programs: what eager computes, or refused for a reason."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from ggsched.errors import ModelError  # noqa: E402
from tests.importers.torch_functions import FUNCTIONS, REFUSED  # noqa: E402
from tests.importers.torch_programs import Lambda, compare  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
SUPPORTED = [name for name in FUNCTIONS if name not in REFUSED]


@pytest.mark.parametrize("first", range(0, len(SUPPORTED), 20))
def test_functions_compute_what_eager_computes(first):
    names = SUPPORTED[first : first + 20]

    def f(*given):
        rest = iter(given)
        return [FUNCTIONS[n][0](*(next(rest) for _ in FUNCTIONS[n][1:])) for n in names]

    compare(Lambda(f), tuple(x.clone() for n in names for x in FUNCTIONS[n][1:]))


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name):
    f, *given = FUNCTIONS[name]
    with pytest.raises(ModelError, match="not supported|depends on data"):
        compare(Lambda(f), tuple(given))


def test_loops_whose_length_depends_on_data_are_refused():
    from torch._higher_order_ops import while_loop

    f = Lambda(lambda x: while_loop(lambda x: x.sum() < 3, lambda x: (x * 2,), (x,))[0])
    with pytest.raises(ModelError, match="a loop whose number of steps depends on data"):
        compare(f, (torch.ones(2),))
