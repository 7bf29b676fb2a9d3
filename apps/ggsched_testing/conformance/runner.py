"""Runs cases, each on fresh devices in a thread that is watched.

report = run_conformance(Harness.named("cpu:0"), rules="EVT-*")
report.raise_if_findings()
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from ggsched.errors import GgschedError, UsageError
from ggsched_testing.conformance.case import Case
from ggsched_testing.conformance.cases_user_op import user_op_cases
from ggsched_testing.conformance.context import MAX_EXAMPLES, TestContext
from ggsched_testing.conformance.harness import Harness, Waiver
from ggsched_testing.conformance.needs import devices_for, need
from ggsched_testing.conformance.report import DEVICE_LOST, CaseResult, ConformanceReport
from ggsched_testing.conformance.rules import BrokenRule
from ggsched_testing.conformance.suite import all_cases, matches, select
from ggsched_testing.conformance.watchdog import Hung, guarded

Elsewhere = Callable[[Sequence[Case]], Iterable[CaseResult]]
"""Runs cases in other processes; gives their results in order."""


def run_conformance(
    harness: Harness | str,
    *,
    seed: int = 0,
    max_examples: int = MAX_EXAMPLES,
    rules: str | Sequence[str] | None = None,
    op: str | None = None,
    verbose: Callable[[CaseResult], None] | None = None,
    each: Elsewhere | None = None,
    anew: Elsewhere | None = None,
) -> ConformanceReport:
    """Run the kit on a backend, or the cases of one user-defined op.

    Args:
        harness: What its author supplies, or the name of an installed device for the default.
        seed: Of all random choices; the same seed makes the same choices.
        max_examples: Random programs that are tried.
        rules: Patterns of rules or cases, e.g. ``"EVT-*"`` or ``"EVT-2,cpy1_*"``; all for None.
        op: Name of a user-defined op, whose cases run instead of the kit's.
        verbose: Called with each result as it comes.
        each: Runs cases elsewhere and gives their results in order; None to run them here.
        anew: The same, for cases that are left when the device is lost and cannot be opened again
            in this process. They are skipped for None.

    Raises:
        UsageError: no such op, a pattern that matches nothing, an unknown backend.
        BackendUnavailable: the devices cannot be opened.
    """
    kit = ConformanceRunner(
        Harness.named(harness) if isinstance(harness, str) else harness, seed, max_examples
    )
    results: list[CaseResult] = []
    cases = select(rules, None if op is None else user_op_cases(op))
    for result in _run_here(kit, cases, anew) if each is None else each(cases):
        results.append(result)
        if verbose is not None:
            verbose(result)
    if op is not None and results and all(r.verdict == "skip" for r in results):
        raise UsageError(
            f"{kit.harness.name} has no kernel for it",
            where=f"op {op!r}",
            hint="name its backend in kernels=",
        )
    stale = stale_waivers(kit.harness.waivers, results, whole=rules is None and op is None)
    return ConformanceReport(kit.harness.name, seed, tuple(results), tuple(stale))


def _run_here(
    kit: "ConformanceRunner", cases: Sequence[Case], anew: Elsewhere | None
) -> Iterator[CaseResult]:
    """Run cases here, as long as there is a device."""
    for done, case in enumerate(cases, 1):
        yield (result := kit.run(case))
        if result.is_lost and anew is not None and not kit.has_device():
            yield from anew(cases[done:])
            return


class DeviceLost(Exception):
    """Devices that were opened before cannot be opened any more."""


class ConformanceRunner:
    """A harness with what was learned about its devices: which needs they meet.

    Attributes:
        echo: Called with each call of a case before it is made, if given.
    """

    def __init__(self, harness: Harness, seed: int = 0, max_examples: int = MAX_EXAMPLES) -> None:
        self.harness = harness
        self.seed = seed
        self.max_examples = max_examples
        self.echo: Callable[[str], None] | None = None
        self._lacking: dict[str, str] = {}
        self._has_opened = False
        self._lost_in = ""

    def run(self, case: Case) -> CaseResult:
        """Run a case, as often as the harness requests, with its waiver taken into account."""
        waiver = next((w for w in self.harness.waivers if matches(case, w.match)), None)
        reason = self._since(case) or next((r for r in map(self.lacks, case.needs) if r), "")
        if reason:
            return CaseResult(case, "skip", reason, seed=self.seed)
        if waiver is not None and waiver.kind == "unsupported":
            return CaseResult(case, "unsupported", waiver.reason, seed=self.seed)
        for i in range(self.harness.repeats):
            result = self._once(case, self.seed + i)
            if result.verdict == "fail":
                break
        if waiver is not None and result.verdict == "fail":
            return replace(result, verdict="xfail", reason=f"{waiver.reason} ({result.reason})")
        return result

    def _since(self, case: Case) -> str:
        """Return why the backend's contract does not have a case, or an empty text."""
        own, since = (".".join(map(str, v)) for v in (self.harness.contract, case.since))
        is_asked = case.since <= self.harness.contract
        return "" if is_asked else f"it declares contract {own}, and this is of {since}"

    def lacks(self, name: str) -> str:
        """Return why a need is not met, or an empty text; devices are queried once."""
        if name not in self._lacking:
            world: list[TestContext] = []
            answer: list[str] = []

            def ask() -> None:
                world.append(self._world("needs", self.seed, max(2, devices_for([name]))))
                try:
                    answer.append(need(name)(world[0]))
                finally:
                    world[0].finish(failed=True)

            try:
                error = guarded(ask, self.harness.case_timeout_s, f"needs {name}")
            except Hung as hung:
                error = None
                answer = [f"finding out whether there is {name!r} hangs: {hung}"]
            if isinstance(error, DeviceLost):
                return ""  # the case says so
            if error is not None:
                if not world:
                    raise error
                answer = [f"finding out whether there is {name!r} failed: {error}"]
            self._lacking[name] = answer[0]
        return self._lacking[name]

    def _world(self, name: str, seed: int, count: int, *, can_hold: bool = True) -> TestContext:
        try:
            devices = self.harness.open(count, seed)
        except Exception as error:
            if self._has_opened:
                raise DeviceLost(_what(error)) from error
            raise
        self._has_opened, self._lost_in = True, ""
        return TestContext(
            devices,
            self.harness,
            name,
            seed,
            can_hold=can_hold,
            max_examples=self.max_examples,
            echo=self.echo,
        )

    def _once(self, case: Case, seed: int) -> CaseResult:
        count = devices_for(case.needs)
        worlds: list[TestContext] = []
        can_hold = "hold" in case.needs or not self.lacks("latch")

        def work() -> None:
            w = self._world(case.name, seed, count, can_hold=can_hold)
            worlds.append(w)
            failed = True
            try:
                case.run(w)
                failed = False
            finally:
                w.finish(failed=failed)

        start = perf_counter()
        error: BaseException | None
        try:
            error = guarded(
                work,
                self.harness.case_timeout_s,
                case.name,
                lambda: [w.call_trace.count for w in worlds],
            )
        except Hung as hung:
            error = hung
            for w in worlds:
                w.release()
        seconds = perf_counter() - start
        if error is None:
            return CaseResult(case, "pass", seed=seed, seconds=seconds)
        if isinstance(error, DeviceLost):
            return self._without_device(case, seed, error)
        if not worlds and not isinstance(error, Hung):
            raise error
        program = tuple(worlds[0].program) if worlds else ("open the devices",)
        reason = _what(error)
        if not isinstance(error, Hung) and not self.has_device():
            self._lost_in = case.name
            reason = f"{DEVICE_LOST}: {reason}"
        return CaseResult(case, "fail", reason, program, seed, seconds, error)

    def _without_device(self, case: Case, seed: int, error: DeviceLost) -> CaseResult:
        """Return the result of a case that got no device; the first one counts as a failure."""
        if self._lost_in:
            reason = f"{DEVICE_LOST} in {self._lost_in}, and it cannot be opened again: {error}"
            return CaseResult(case, "skip", reason, seed=seed)
        self._lost_in = case.name
        reason = f"{DEVICE_LOST}: it cannot be opened again: {error}"
        return CaseResult(case, "fail", reason, ("open the devices",), seed, error=error)

    def has_device(self) -> bool:
        """Whether a device can be opened, and makes streams and buffers.

        Transfers would say less: a device that is broken from the start is not one that was lost.
        """

        def make() -> None:
            w = self._world("device", self.seed, 1, can_hold=False)
            failed = True
            try:
                w.stream()
                w.buffer()
                failed = False
            finally:
                w.finish(failed=failed)

        try:
            return guarded(make, self.harness.case_timeout_s, "device") is None
        except Hung:
            return False


def _what(error: BaseException) -> str:
    """Say what happened, on one line."""
    if isinstance(error, BrokenRule):
        return " ".join(str(error).split())
    if isinstance(error, Hung):
        return f"hangs: {error}"
    text = error.one_line() if isinstance(error, GgschedError) else str(error)
    return " ".join(f"raises {type(error).__name__}: {text}".split())


def stale_waivers(
    waivers: Sequence[Waiver], results: Sequence[CaseResult], *, whole: bool
) -> list[str]:
    """Return what is wrong with waivers: they match nothing, or what they match works.

    Args:
        results: Of the cases that ran.
        whole: Whether all cases were requested; a part says little about waivers of the rest.
    """
    found: list[str] = []
    everything = all_cases()
    for waiver in waivers:
        if not any(matches(c, waiver.match) for c in everything):
            found.append(f"{waiver.match}: no rule and no case of that name")
            continue
        mine = [r for r in results if matches(r.case, waiver.match)]
        passed = [r.case.name for r in mine if r.verdict == "pass"]
        if waiver.kind == "xfail" and passed:
            found.append(f"{waiver.match}: {', '.join(passed)} passed")
        elif whole and mine and all(r.verdict == "skip" for r in mine):
            found.append(f"{waiver.match}: its cases are skipped anyway: {mine[0].reason}")
    return found
