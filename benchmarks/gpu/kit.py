"""The conformance kit on the GPU: logical devices of one GPU, and two GPUs if there are."""

import sys
from typing import Any

from ggsched_cuda.harness import CudaHarness
from ggsched_testing.conformance import Harness, run_conformance
from ggsched_testing.conformance.harness import adapted
from ggsched_testing.conformance.report import explain


def harness(name: str = "cuda", *, gpus: bool = False, **changes: Any) -> Harness:
    """Return the harness of the plug-in."""
    own = CudaHarness(gpus=gpus)
    plain = Harness(name, own.open)
    fields = {"open": own.open, "latch": own.latch, **changes}
    return adapted(plain, fields)


def run(*, quick: bool) -> dict[str, Any]:
    """Run the kit with a latch kernel, and with latches by foreign events."""
    from ggsched_cuda import driver

    wanted = {
        "logical devices, latch kernel": harness(),
        "logical devices, latch by event": harness(latch=_no_latch),
    }
    if len(driver.find_gpus()) > 1:
        wanted["two GPUs, latch kernel"] = harness(gpus=True)
    results = {}
    for name, made in wanted.items():
        report = run_conformance(made, max_examples=15 if quick else 50)
        counts: dict[str, int] = {}
        for result in report.results:
            counts[result.verdict] = counts.get(result.verdict, 0) + 1
        results[name] = {
            "ok": report.ok,
            "counts": counts,
            "findings": [r.to_json() for r in report.findings],
            "skipped": {r.case.name: r.reason for r in report.results if r.verdict == "skip"},
            "slowest": {
                r.case.name: round(r.seconds, 2)
                for r in sorted(report.results, key=lambda r: -r.seconds)[:5]
            },
        }
        sys.stdout.write(f"   {name}: {counts}\n")
        for finding in report.findings[:12]:
            sys.stdout.write("\n".join(explain(finding, "cuda")) + "\n")
            if finding.error is not None and "finding" in finding.reason:
                sys.stdout.write(f"{finding.error!r}\n")
    return {"ok": all(r["ok"] for r in results.values()), "runs": results}


def _no_latch(stream: Any) -> Any:
    from ggsched_testing.conformance.latch import hold_by_event

    return hold_by_event(stream)
