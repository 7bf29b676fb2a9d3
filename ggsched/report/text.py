"""Where the time of a run went, as a table of text that fits 80 columns."""

from collections.abc import Iterator
from textwrap import wrap

from ggsched.trace.advice import advise
from ggsched.trace.setup import RunSetup
from ggsched.trace.utilization import BY_REFERENCE, Account
from ggsched.units import nbytes_text, seconds_text

WIDTH = 80

MAX_OPS = 12
"""Rows of the table of time by op."""

MAX_PLANS = 6
"""Rows of the table of plans."""


def account_text(made: Account, setup: RunSetup | None = None, width: int = WIDTH) -> str:
    """Return an account and what would help most.

    Args:
        setup: How the run was set up; with it options are advised that such a run accepts.
        width: Columns.
    """
    return "\n".join(_lines(made, setup, width)) + "\n"


def _lines(made: Account, setup: RunSetup | None, width: int) -> Iterator[str]:
    estimated = ", some times estimated" if made.is_estimated else ""
    yield f"{seconds_text(made.window_s)} in {made.runs} runs of plans{estimated}"
    yield ""
    yield f"{'device':<14} {'busy':>9} {'copies':>9} {'devices':>9} {'host':>9} {'done':>9}"
    for device in made.devices:
        shares = device.shares().values()
        yield f"{device.device:<14.14} " + " ".join(f"{100 * share:8.1f}%" for share in shares)
    yield ""
    ideal = f"; {made.stages} equal stages and {batches_text(made)} leave {made.ideal_bubble:.1%}"
    yield f"idle {made.bubble:.1%}" + (ideal if made.stages > 1 else "")
    between = max((d.between_s for d in made.devices), default=0.0)
    apart = f"; up to {seconds_text(between)} of host lie between runs" if between else ""
    yield f"{made.host_syncs} host syncs, {seconds_text(made.host_sync_s)}{apart}"
    for path in made.paths:
        yield (
            f"{path.path:<30}  {nbytes_text(path.nbytes):>10} in {path.copies} copies, "
            f"{seconds_text(path.seconds)}"
        )
    for read in made.peer_reads:
        amount = f"{nbytes_text(read.nbytes):>10} read by {read.launches} launches"
        yield f"{read.path:<30}  {amount}, {seconds_text(read.seconds)}"
    yield from _plan_lines(made)
    yield from _op_lines(made)
    found = advise(made, setup)
    if found:
        yield ""
        yield "what would help most"
    for number, advice in enumerate(found, 1):
        text = f"{number}. up to {advice.saves_s / made.window_s:.0%}: {advice.what}: {advice.why}"
        yield from wrap(text, width, subsequent_indent="   ", break_on_hyphens=False)
        if advice.options:
            yield f"   try: {advice.options}"


def batches_text(made: Account) -> str:
    """Say how many micro-batches were in flight together."""
    if made.micro_batches == 1:
        return "one micro-batch at a time"
    return f"up to {made.micro_batches} micro-batches at a time"


def _plan_lines(made: Account) -> Iterator[str]:
    """Yield the plans that took most, with what the cost model predicts beside it."""
    if not made.plans:
        return
    yield ""
    heads = f"{'runs':>5} {'best':>9} {'predicted':>9} {'idle':>7} {'predicted':>9}"
    yield f"{'runs of plans':<32} {heads}"
    for plan in made.plans[:MAX_PLANS]:
        what = f"{plan.name:<32.32} {plan.runs:>5} {seconds_text(plan.best_s):>9}"
        guess, idle = "", ""
        if plan.expected_s:
            guess, idle = seconds_text(plan.expected_s), f"{plan.expected_idle:.1%}"
        yield f"{what} {guess:>9} {plan.idle:>7.1%} {idle:>9}".rstrip()
    rest = made.plans[MAX_PLANS:]
    if rest:
        yield f"and {len(rest)} more plans, {sum(plan.runs for plan in rest)} runs"


def _op_lines(made: Account) -> Iterator[str]:
    """Yield the ops that took most of the measured time, with what the cost model predicts."""
    total = sum(op.seconds for op in made.ops)
    if not total:
        return
    yield ""
    heads = f"{'nodes':>7} {'time':>9} {'predicted':>9} {'share':>7}"
    yield f"{'time by op':<28} {'device':<14} {heads}"
    for op in made.ops[:MAX_OPS]:
        share = f"{op.seconds / total:7.1%}"
        what = f"{op.op:<28.28} {op.device:<14.14} {op.nodes:>7}"
        guess = "" if op.expected_s is None else seconds_text(op.expected_s)
        yield f"{what} {seconds_text(op.seconds):>9} {guess:>9} {share}"
    rest = made.ops[MAX_OPS:]
    if rest:
        yield f"and {len(rest)} more, {seconds_text(sum(op.seconds for op in rest))}"
    slow = [op for op in made.ops if op.op.endswith(BY_REFERENCE)]
    if slow:
        taken = seconds_text(sum(op.seconds for op in slow))
        nodes = sum(op.nodes for op in slow)
        yield f"{nodes} nodes without a kernel ran by the reference arithmetic: {taken}"
