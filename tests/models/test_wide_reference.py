"""How far llama.cpp and ggsched are from what a model means, which is its graph in float64.

Logits that both round differ by what both of them round. Here each of them is compared with the
reference, so that a bound says something about one of them.
"""

import numpy as np
import pytest

from ggsched.models.load import load_model
from ggsched.models.session import Session, SessionOptions
from tests.models.reference_models import N_CTX, REFERENCES, write_reference
from tests.models.test_reference import recorded_of
from tests.models.wide_runner import WideRunner

ROUNDED = [name for name in REFERENCES if name.endswith("q8_0") and not name.startswith("gemma")]
# One number of position 7 is between two codes; attention shows it to all later positions, and
# states keep it.
MIDDLE = {"mixtral-q8_0": 2e-2, "qwen35moe-wide-q8_0": 2e-2}
# What states keep of a rounding is more where sums of products are in another order.
SHARE = 1.5


def feeds(recorded, key):
    """Return the batches of tokens that were fed for some logits, of which the last ones count."""
    if key == "dec_logits":
        return [recorded["dec_prompt"], *recorded["dec_tokens"][:, None]]
    return [recorded[key.replace("logits", "tokens")]]


def fed(feed, batches, key):
    rows = [feed(batch) for batch in batches]
    return np.concatenate([row[-1:] for row in rows] if key == "dec_logits" else rows)


@pytest.mark.parametrize(
    "arch",
    [
        "qwen3next-wide",
        "mamba2",
        *(pytest.param(a, marks=pytest.mark.slow) for a in ("qwen3next", "qwen35moe")),
    ],
)
def test_distance_of_f32_is_that_of_llama_cpp(tmp_path, arch):
    """The largest distance of any logit, and the root of the mean square, of all that was recorded.

    With narrow heads llama.cpp's own are up to 6e-5, and two builds of it are 2.4e-5 apart: no
    implementation is within 2e-5 of it everywhere but by chance. With wide ones it is up to 1e-5.
    """
    recorded = recorded_of(f"{arch}-f32")
    model = load_model(write_reference(tmp_path / "m.gguf", f"{arch}-f32"), weights="packed")
    ours, theirs = [], []
    for key in ("logits_33", "dec_logits"):
        batches = feeds(recorded, key)
        exact = fed(WideRunner(model, n_ctx=N_CTX).feed, batches, key)
        with Session(model, ["cpu:0"], SessionOptions(n_ctx=N_CTX)) as session:
            found = fed(lambda t: session.feed(t.tolist(), all_logits=True), batches, key)
        ours.append(found - exact)
        theirs.append(recorded[key] - exact)
    mine, other = np.concatenate(ours), np.concatenate(theirs)
    assert rms(mine) < SHARE * rms(other)
    assert np.abs(mine).max() < SHARE * np.abs(other).max()


def rms(x):
    return np.sqrt((x**2).mean())


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_activations_are_all_that_differs(tmp_path, name):
    """With activations rounded as llama.cpp rounds them, logits are its own, states included.

    Without, they are up to half the deviation of the logits away: an expert that a rounding
    chooses changes what the states keep.
    """
    recorded = recorded_of(name)
    model = load_model(write_reference(tmp_path / "m.gguf", name), weights="expand")
    wanted = recorded["logits_33"]
    found = WideRunner(model, n_ctx=N_CTX, rounds=True).feed(recorded["tokens_33"])
    apart = np.sqrt(((found - wanted) ** 2).mean(axis=-1)) / wanted.std(axis=-1)
    assert apart.min() < 1e-6
    assert np.median(apart) < MIDDLE.get(name, 1e-6)
    assert apart.max() < 5e-2
