"""Rows that ids choose: those of a record are those that the op reads or writes."""

import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")

from ggsched_race import ops  # noqa: E402
from ggsched_race.watch import watch  # noqa: E402

A = torch.ops.aten
SIZES = (5, 4)


def some(draw, size, count=2):
    return torch.tensor([draw.randrange(-size, size) for _ in range(count)])


def mask(draw, *sizes):
    return torch.rand(sizes, generator=torch.Generator().manual_seed(draw.randrange(99))) < 0.5


def along(draw):
    return torch.tensor([[draw.randrange(5) for _ in range(3)] for _ in range(2)])


def indices(draw):
    return draw.choice(
        [
            [some(draw, 5)],
            [None, some(draw, 4)],
            [some(draw, 5), some(draw, 4)],
            [mask(draw, 5)],
            [None, mask(draw, 4)],
            [mask(draw, 5, 4)],
        ]
    )


CALLS = {
    "index": lambda d: (A.index.Tensor, (indices(d),)),
    "_unsafe_index": lambda d: (A._unsafe_index.Tensor, ([some(d, 5), some(d, 4)],)),
    "index_put_": lambda d: (A.index_put_.default, (indices(d), torch.tensor(-7.0))),
    "_index_put_impl_": lambda d: (A._index_put_impl_.default, (indices(d), torch.tensor(-7.0))),
    "index_select": lambda d: (A.index_select.default, (1, some(d, 4).abs() % 4)),
    "index_copy_": lambda d: (
        A.index_copy_.default, (0, along(d)[0, :2], torch.full((2, 4), -7.0)),
    ),
    "index_add_": lambda d: (A.index_add_.default, (-1, along(d)[0] % 4, torch.full((5, 3), -7.0))),
    "index_fill_": lambda d: (A.index_fill_.int_Scalar, (0, some(d, 5), -7.0)),
    "index_reduce_": lambda d: (
        A.index_reduce_.default, (0, along(d)[0, :2], torch.full((2, 4), 70.0), "amax"),
    ),
    "take": lambda d: (A.take.default, (some(d, 20, 3),)),
    "put_": lambda d: (A.put_.default, (some(d, 20), torch.full((2,), -7.0))),
    "masked_fill_": lambda d: (A.masked_fill_.Scalar, (mask(d, *d.choice([(5, 1), (4,)])), -7.0)),
    "masked_scatter_": lambda d: (
        A.masked_scatter_.default, (mask(d, 5, 4), torch.full((20,), -7.0)),
    ),
    "gather": lambda d: (A.gather.default, (0, along(d))),
    "scatter_": lambda d: (A.scatter_.value, (0, along(d), -7.0)),
    "scatter_add_": lambda d: (A.scatter_add_.default, (0, along(d), torch.full((2, 3), -7.0))),
    "scatter_reduce_": lambda d: (
        A.scatter_reduce_.two, (0, along(d), torch.full((2, 3), -7.0), "sum"),
    ),
    "embedding": lambda d: (A.embedding.default, (along(d),)),
    "_embedding_bag": lambda d: (A._embedding_bag.default, (along(d)[0], torch.tensor([0, 1]))),
    "_embedding_bag_forward_only": lambda d: (
        A._embedding_bag_forward_only.default, (along(d)[0], torch.tensor([0, 1])),
    ),
}  # fmt: skip


def touched(func, args):
    """Return the elements that an op changes, or whose change changes its result."""
    table = torch.arange(20.0).reshape(SIZES)
    changed, result = table.clone(), func(table.clone(), *args)
    if func._schema.is_mutable:
        func(changed, *args)
        return set(torch.nonzero((changed != table).reshape(-1)).reshape(-1).tolist())
    found = set()
    for k in range(20):
        other = table.clone()
        other.view(-1)[k] += 100
        again = func(other, *args)
        first, second = (r[0] if isinstance(r, tuple) else r for r in (result, again))
        found |= set() if torch.equal(first, second) else {k}
    return found


@pytest.mark.parametrize("name", sorted(ops._CHOSEN))
def test_rows_of_an_op_are_those_that_it_touches(name):
    for seed in range(8):
        func, args = CALLS[name](random.Random(seed))
        table = torch.arange(20.0).reshape(SIZES)
        chosen = ops.op_of(func).chosen
        runs = ops.table_of(table).rows(
            chosen.ids((table, *args), lambda ids: ids.numpy()), chosen.is_gather
        )
        elements = {b // 4 for start, end in runs.runs for b in range(start, end)}
        assert elements == touched(func, args), (seed, args)


@pytest.mark.parametrize("read", ["table[rows]", "masked_select(table, rows)", "nonzero(table)"])
@pytest.mark.parametrize("waits", [False, True])
def test_work_behind_a_wait_inside_an_op_is_not_waited_for(read, waits):
    """The host waits for the number of rows, and launches what reads them after that."""
    with watch("masks", simulate=True, raises=False) as watched:
        table = torch.ones(4, device="cuda")
        rows = torch.tensor([True, False, True, False], device="cuda")
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            eval(read, {**vars(torch), "table": table, "rows": rows})
        if waits:
            side.synchronize()
        table.zero_()
    assert watched.report.is_clean == waits
