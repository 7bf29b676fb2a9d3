"""Which arguments a kernel of Triton reads and writes: by its text, without Triton."""

from types import SimpleNamespace

import pytest

from ggsched_race.kernel_modes import modes_of


class Helper:
    """A function that kernels call, as Triton has it."""

    def __init__(self, source, **scope):
        self.src = source
        self.arg_names = source.partition("(")[2].partition(")")[0].replace(" ", "").split(",")
        code = compile("def plain(): pass", "helper", "exec")
        exec(code, scope)
        self.fn = scope["plain"]


def kernel(*lines, parameters="x, y, out, n"):
    return f"def kernel({parameters}):\n" + "".join(f"    {line}\n" for line in lines)


FETCH = Helper("def fetch(p, offs):\n    return tl.load(p + offs)\n")
MOVED = Helper("def moved(p, k):\n    return p + k\n")
PUT = Helper("def put(p, v):\n    tl.store(p, v)\n")
DEEP = Helper("def deep(p, v):\n    put(moved(p, 3), v)\n", put=PUT, moved=MOVED)
HELPERS = SimpleNamespace(put=PUT)
SCOPE = {"fetch": FETCH, "moved": MOVED, "helpers": HELPERS, "deep": DEEP}
SCOPE["package"] = SimpleNamespace(helpers=HELPERS)
CASES = [
    (["tl.store(out + offs, tl.load(x + offs) + tl.load(y + offs))"], "x y", "out"),
    (["a = x + offs", "v = tl.load(a, mask=n > 1)", "tl.store(pointer=out, value=v)"], "x", "out"),
    (["tl.atomic_add(out + tl.load(x), 1.0)"], "x out", "out"),
    (["v = fetch(x, offs)", "helpers.put(moved(out, 2), v)"], "x", "out"),
    (["deep(v=1, p=out)"], "", "out"),
    (["p, q = x, out", "tl.store(q, tl.load(p))"], "x", "out"),
    (["a = x", "if n > 3:", "    a = y", "tl.store(out, tl.load(a))"], "x y", "out"),
    (["a = x", "for i in range(n):", "    tl.store(out, tl.load(a))", "    a = y"], "x y", "out"),
    (
        ["a, b, c = out, out, out", "for i in range(n):"]
        + [f"    {line}" for line in ("v = tl.load(a)", "a = b", "b = c", "c = x")],
        "x out",
        "",
    ),
    (["while n:", "    n = n - 1", "else:", "    tl.store(out, tl.load(x))"], "x", "out"),
    (["package.helpers.put(out, 1)"], "", "out"),
    (["v = [tl.load(p) for p in (x, y)]"], "x y", ""),
    (["a = x + 1", "a = tl.load(a)", "tl.store(out + a, 1)"], "x", "out"),
    (["d = tl.make_tensor_descriptor(x, shape=[n])", "tl.store(out, d.load([0]))"], "x", "out"),
    (["d = tl.make_block_ptr(base=out)", "d = tl.advance(d, [1])", "tl.store(d, 1)"], "", "out"),
    (["tl.store_tensor_descriptor(out, [0], tl.load_tensor_descriptor(x, [0]))"], "x", "out"),
    (["v = tl.reduce(tl.load(x), 0, f)", "tl.store(out, tl.gather(v, n, 0))"], "x", "out"),
    (["p = x.to(tl.pointer_type(tl.int8))", "tl.store(out, tl.load(p))"], "x", "out"),
    (["tma.async_copy_global_to_shared(x, [0], n, s)"], "x", ""),
    (["async_copy.async_copy_global_to_shared(s, x + n)"], "x", ""),
    (["tma.async_copy_shared_to_global(out, [0], s)"], "", "out"),
    (["while n:", "    x += 1", "    n = tl.load(x)"], "x", ""),
    (["tl.inline_asm_elementwise('', '', [x, out])"], "x out", "x out"),
    (["tl.store(out, tl.where(n > 0, tl.dot(tl.load(x), tl.load(y)), 0))"], "x y", "out"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "reads", "writes"), CASES, ids=[c[0][0] for c in CASES])
def test_modes_follow_from_the_text(lines, reads, writes):
    modes = modes_of(kernel(*lines), SCOPE)
    found = [set(parameters) - {"n"} for parameters in (modes.reads, modes.writes)]  # a number
    assert found == [set(reads.split()), set(writes.split())]
    assert modes.is_complete


def test_addresses_that_a_kernel_loads_are_beyond_its_parameters():
    lines = ["p = tl.load(x).to(tl.pointer_type(tl.float32))", "tl.store(p, 1)"]
    modes = modes_of(kernel(*lines), SCOPE)
    assert set(modes.reads) == {"x"}
    assert not modes.is_complete


def test_functions_that_call_each_other_end():
    scope = {}
    again = Helper("def again(p):\n    return again(p)\n", again=None)
    again.fn.__globals__["again"] = again
    scope["again"] = again
    assert set(modes_of(kernel("again(x)"), scope).writes) == {"x"}
