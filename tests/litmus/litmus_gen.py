"""Random litmus programs, as text, and a checker of them that tries everything."""

from itertools import combinations

from hypothesis import strategies as st

from ggsched_testing.litmus import parse_litmus
from ggsched_testing.litmus.steps import script_of

HOSTS = ("H", "H2")
QUEUES = ("A", "B", "C")
EVENTS = ("e", "f")


@st.composite
def accesses(draw, sign, most):
    out = []
    for _ in range(draw(st.integers(0, most))):
        name = draw(st.sampled_from("xxyP"))
        if name == "P" and draw(st.booleans()):
            start = draw(st.integers(0, 6))
            name += f"[{start}:{start + draw(st.integers(1, 4))}]"
        tag = draw(st.sampled_from(["", "", f"{sign}1", f"{sign}2"]))
        out.append(name + tag)
    return " ".join(out)


@st.composite
def lines(draw, captures=False):
    actor = draw(st.sampled_from([*HOSTS[: draw(st.integers(1, 2))], *QUEUES]))
    verbs = ["run"] * 5 + ["rec", "wait", "wait", "sync"]
    verb = draw(st.sampled_from(verbs + ["malloc", "devsync", "cap"] * captures))
    if verb == "run":
        writes = draw(accesses("#", 2))
        return f"{actor}: run {draw(accesses('?', 2))}{' > ' + writes if writes else ''}"
    if verb in ("rec", "wait"):
        return f"{actor}: {verb} {draw(st.sampled_from(EVENTS))}"
    if verb == "sync":
        return f"{actor}: sync {draw(st.sampled_from(EVENTS + QUEUES + HOSTS[:1]))}"
    if verb == "cap":
        return f"{draw(st.sampled_from(QUEUES))}: {draw(st.sampled_from(['capbegin', 'capend']))}"
    return f"{actor}: {verb}" + (" scratch" if verb == "malloc" else "")


@st.composite
def programs(draw, captures=False):
    """Draw a block whose broken variant has all of the lines and whose fixed one has some."""
    drawn = draw(st.lists(lines(captures), min_size=1, max_size=10))
    marked = [draw(st.sampled_from(["", "", "- ", "+ "])) + line for line in drawn]
    return "\n".join(["litmus X race", *marked]) + "\n"


def brute_verdict(text, variant):
    """Return the verdict by trying every order, each step on its own memory."""
    (block,) = parse_litmus(text)
    start = script_of(block, variant)
    if start.illegal:
        return "capture"
    seen, todo, full = set(), [frozenset()], []
    while todo:
        done = todo.pop()
        if done in seen:
            continue
        seen.add(done)
        able = [i for i, n in enumerate(start.needs) if i not in done and n <= done]
        if any(start.clash(i, j) for i, j in combinations(able, 2)):
            return "race"
        todo += [done | {i} for i in able]
        full += [] if able else [done]
    assert full == [frozenset(range(len(start.ops)))], "not every step can be reached"
    wrong = [_wrong_reads(block, variant, i) for i in range(len(start.ops))]
    return "value" if any(wrong) else "clean"


def _wrong_reads(block, variant, i):
    """Whether a read of step ``i`` finds another unit than it needs, in the listed order."""
    sizes, content = block.sizes, {}

    def units(r):
        return range(*((0, sizes[r.name]) if r.start is None else (r.start, r.end)))

    for k, op in enumerate(block.variant(variant)):
        if k == i and op.verb != "malloc":
            for r in op.reads:
                if r.tag and any(content.get((r.name, u)) != r.tag for u in units(r)):
                    return True
        for r in op.writes:
            content.update({(r.name, u): r.tag for u in units(r)})
    return False
