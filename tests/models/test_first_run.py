"""What a run of a published model in q4_k_m takes beside its file, if nothing is said but a prompt.

The files have the real widths and no content: nothing is loaded to find out.
"""

import pytest

from ggsched.config import Settings
from ggsched_llm.arch import ARCHITECTURES
from ggsched_llm.load import load_model
from ggsched_llm.memory_check import _mapped_nbytes
from ggsched_llm.session import Session, SessionOptions
from tests.support.expert_files import write_model
from tests.support.model_shapes import SHAPES

PROMPT, ANSWER, CONTEXT = 32, 8, 4096
BLOCKS = {"deepseek3-671b": 4, "mamba2-2.7b": 64, "mamba2-7b": 16}
# A state of 128 x 64 numbers in each of 80 heads, in f32 as llama.cpp's, is 11 % of the file.
SHARE = {"mamba2-2.7b": 0.12}


def beside(path, weights="packed"):
    """Return the bytes beside the file's: rows of caches that are used, results, expansions."""
    model = load_model(path, weights=weights)
    options = SessionOptions(n_ctx=CONTEXT)
    with Session(model, ["cpu:0"], options, settings=Settings(sanitize="off")) as session:
        need = session.memory_need(PROMPT, ANSWER).peak
        states = session.spec.state_nbytes(CONTEXT)
        unused = sum(n for name, n in states.items() if name.endswith(("k_cache", "v_cache")))
        unused -= unused * (PROMPT + ANSWER) // CONTEXT
        assert need[0].states == sum(states.values())
        return sum(n.total for n in need.values()) - _mapped_nbytes(session)[0] - unused


@pytest.mark.parametrize("name", SHAPES)
def test_a_run_takes_a_tenth_of_the_file_at_most(tmp_path, name):
    path = tmp_path / "m.gguf"
    nbytes = write_model(path, name, "q4_k_m", BLOCKS.get(name, 2), empty=True)
    assert path.stat().st_blocks * 512 < nbytes / 10
    assert beside(path) < SHARE.get(name, 0.1) * nbytes


def test_expanded_weights_would_be_noticed(tmp_path):
    nbytes = write_model(tmp_path / "m.gguf", "llama-8b", "q4_k_m", 2, empty=True)
    assert beside(tmp_path / "m.gguf", "expand") > 2 * nbytes


def test_each_architecture_has_a_shape():
    assert {shape.arch for shape in SHAPES.values()} == set(ARCHITECTURES)
