"""Logits of small models against those of llama.cpp, on every mix of devices."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.session import Session, SessionOptions

DATA = Path("tests/data/oracle")
MODELS = (
    "llama-tiny-f32",
    "qwen3moe-tiny-f32",
    "gptoss-tiny-f32",
    "llama-tiny-f16",
    "llama-tiny-q8_0",
)
MIXES: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("cuda:0",), {}),
    (("cuda:0", "cpu:0"), {"n_gpu_layers": 1}),
    (("cuda:0/0", "cuda:0/1"), {}),
    (("cuda:0/0", "cuda:0/1", "cpu:0"), {"n_gpu_layers": 1}),
    (("cpu:0", "cuda:0"), {}),
)
MOST = {"f32": 1e-4, "f16": 2e-3, "q8_0": 3e-2}


def run(*, quick: bool) -> dict[str, Any]:
    """Compare prefill and decoding; f32 within 1e-4, others as tests/models does."""
    found: dict[str, Any] = {}
    ok = True
    for name in MODELS:
        kind = name.rsplit("-", 1)[1]
        with np.load(DATA / f"{name}.npz") as arrays:
            wanted = dict(arrays)
        for devices, offload in MIXES:
            key = f"{name} on {', '.join(devices)} {offload or ''}".strip()
            try:
                worst = _worst(name, kind, devices, offload, wanted)
                good = worst <= MOST[kind]
            except Exception as error:
                worst, good = repr(error)[:400], False
            ok = ok and good
            found[key] = worst
            sys.stdout.write(f"   {key}: {worst} {'' if good else 'WRONG'}\n")
    return {"ok": ok, "difference": found, "bound": MOST}


def _worst(name: str, kind: str, devices: Any, offload: Any, wanted: Any) -> float:
    model = load_model(DATA / f"{name}.gguf", weights="packed" if kind != "f32" else "expand")
    worst = 0.0
    options = SessionOptions(n_ctx=64, n_ubatch=16, offload=Offload(**offload))
    with Session(model, devices, options) as session:
        for n in (1, 7, 33):
            session.reset()
            logits = session.feed(wanted[f"tokens_{n}"].tolist(), all_logits=True)
            worst = max(worst, _distance(kind, logits, wanted[f"logits_{n}"]))
        session.reset()
        rows = [session.feed(wanted["dec_prompt"].tolist())]
        rows += [session.feed([int(token)]) for token in wanted["dec_tokens"]]
        return max(worst, _distance(kind, np.concatenate(rows), wanted["dec_logits"]))


def _distance(kind: str, found: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference; for rounded weights its rms over the deviation of logits."""
    difference = found.astype(np.float64) - wanted
    if kind == "f32":
        return float(np.abs(difference).max())
    rms = np.sqrt((difference**2).mean(axis=-1)) / wanted.std(axis=-1)
    return float(rms.max())
