"""What a session takes for a token: a step, what the host adds to it, and changes of the plan.

Each model is opened three times. The first session compiles kernels that the machine has not seen;
of the other two the quicker one counts for each token. Where the cache's rows are rounded up to
more, a token needs a new graph, plan and capture: what that takes is compared with the tokens that
the same time would have given.
"""

import sys
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.gpu.decode import CASES, QUICK
from benchmarks.gpu.running import Running, model_of
from ggsched_llm.batches import kv_bucket
from ggsched_llm.session import Session, SessionOptions
from tests.support.shapes import random_weights, spec_of

N_CTX = 2048
PROMPT = tuple(range(1, 9))
SESSIONS = 3
NAMES = ("llama-1b bf16", "gpt-oss-20b mxfp4")


def run(*, quick: bool) -> dict[str, Any]:
    """Generate tokens with models of random weights; they have to be the same each time."""
    cases = QUICK if quick else {name: CASES[name] for name in NAMES}
    found: dict[str, Any] = {}
    for name, case in cases.items():
        found[name] = _measured(*case, n_predict=80 if quick else 620)
        sys.stdout.write(f"   {name}: {found[name]}\n")
        sys.stdout.flush()
    return {"ok": all(result["same"] for result in found.values()), **found}


def _measured(hparams: Any, dtype: Any, experts: Any, n_predict: int) -> dict[str, Any]:
    spec = spec_of(hparams, dtype, experts)
    source = random_weights(spec)
    runs = []
    with model_of(spec, source) as model:
        for _ in range(SESSIONS):
            with Session(model, ["cuda:0"], SessionOptions(n_ctx=N_CTX)) as session:
                runs.append(_generated(session, n_predict))
    running = Running.on(["cuda:0"], spec, source)
    try:
        running.capture()
        running.step()
        device_us = running.device_seconds() * 1e6
    finally:
        running.close()
    us = np.min([times for _, times in runs[1:]], axis=0)  # without the token of the prompt
    used = np.arange(len(us)) + len(PROMPT) + 1
    rows = np.array([kv_bucket(int(n), N_CTX) for n in used])
    changes = np.flatnonzero(np.diff(rows, prepend=0))
    token_us = float(np.median(us[rows == kv_bucket(129, N_CTX)]))
    return {
        "same": all(tokens == runs[0][0] for tokens, _ in runs),
        "tokens": len(us),
        "device_us": device_us,
        "token_us": token_us,
        "token_by_device": token_us / device_us,
        "changes": {int(rows[i]): round(us[i] / 1e3, 1) for i in changes},
        "changes_with_unknown_kernels": {
            int(rows[i]): round(runs[0][1][i] / 1e3, 1) for i in changes
        },
        "change_in_tokens": float(np.median(us[changes])) / token_us,
        "share_of_changes": float(us[changes].sum() / us.sum()),
    }


def _generated(session: Session, n_predict: int) -> tuple[list[int], np.ndarray]:
    """Return tokens, and the microseconds of each but the first."""
    tokens, times = [], []
    last = perf_counter()
    for token in session.generate(PROMPT, n_predict):
        now = perf_counter()
        tokens.append(token)
        times.append((now - last) * 1e6)
        last = now
    return tokens, np.array(times[1:])
