"""Speculative decoding: tokens are those of the model alone, whatever a draft model proposes."""

import logging
import re
from collections import Counter
from functools import cache
from itertools import islice, pairwise, product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.config import Settings
from ggsched.errors import DeviceFault, OutOfDeviceMemory, PlanError, UsageError
from ggsched.plan.command import Download
from ggsched_llm import draft as drafting
from ggsched_llm.batch_runner import BatchRunner, StartedRows
from ggsched_llm.draft import Draft, DraftedSteps, check_vocabularies
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.draft_pacing import Pacing
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.sampling import Sampling
from ggsched_llm.session import Session, SessionOptions
from tests.models.helpers import tiny_arrays, tiny_gguf
from tests.models.reference_models import write_reference
from tests.models.test_recurrent import NAMES as RECURRENT

PROMPT = (3, 1, 4, 1, 5)
COUNT = 31
ARCHS = ("llama", "qwen3moe", "gpt-oss")  # the last one with windows


class Eager(Pacing):
    """Drafts at every step, whatever that takes."""

    def wants_draft(self, more=0):
        return True

    def note_round(self, n_tokens, seconds):
        pass


@pytest.fixture
def eager(monkeypatch):
    monkeypatch.setattr(drafting, "Pacing", Eager)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that makes a model: the same weights for the same seed."""
    folder, known = tmp_path_factory.mktemp("models"), {}

    def make(arch="llama", seed=1, *, layers=3, vocab=40):
        """Blocks behind the first add little, so that it alone predicts well."""
        key = arch, seed, layers, vocab
        if key not in known:
            experts = {"experts": 4} if arch != "llama" else {}
            arrays = tiny_arrays(arch, layers=3, vocab=vocab, seed=seed, **experts)
            for name, array in arrays.items():
                if re.match(r"blk\.[12]\.(attn_output|ffn_down)", name):
                    array *= 0.1
            gone = re.compile(r"blk\.(\d+)\.")
            kept = {
                n: a for n, a in arrays.items() if not (m := gone.match(n)) or int(m[1]) < layers
            }
            path = folder / f"{'-'.join(map(str, key))}.gguf"
            sizes = {"layers": layers, "vocab": vocab, **experts}
            known[key] = load_model(tiny_gguf(path, arch, arrays=kept, **sizes))
        return known[key]

    return make


def opened(model, devices=("cpu:0",), draft=None, *, options=None, **sizes):
    session = Session(
        model, list(devices), SessionOptions(**{"n_ctx": 64} | sizes), settings=Settings()
    )
    if draft is not None:
        session.use_draft(draft, options)
    return session


@cache
def alone(model, count=COUNT, sampling=None):
    with opened(model) as session:
        return list(session.generate(PROMPT, count, sampling))


MIXES = {
    "cpu": (("cpu:0",), None, {}),
    "cpu, draft on opencl": (("cpu:0",), ("opencl:0",), {}),
    "opencl + cpu": (("opencl:0", "cpu:0"), None, {"offload": Offload(n_gpu_layers=2)}),
    "sim": (("sim:0",), None, {}),
    "two sims, draft on a third": (("sim:0", "sim:1"), ("sim:2",), {}),
    "two sims that share layers": (("sim:0", "sim:1"), ("sim:1",), {"split_mode": "tensor"}),
    "sim + cpu, draft over both": (("sim:0", "cpu:0"), ("cpu:0", "sim:0"), {}),
}
KINDS = {
    "itself": lambda made, arch, seed: made(arch, seed),
    "its first block": lambda made, arch, seed: made(arch, seed, layers=1),
    "another model": lambda made, arch, seed: made("llama", seed + 100, layers=1),
}
HOW = {
    "greedy": Sampling(),
    "drawn": Sampling(temperature=1.0, seed=5),
    "filtered": Sampling(temperature=1.5, top_k=8, top_p=0.9, seed=7),
    "penalised": Sampling(repeat_penalty=1.3),
}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("mix", MIXES)
def test_tokens_are_those_of_the_model_alone(made, mix):
    """Greedy or drawn, over two buckets of the cache, with any draft; all pairs over the mixes."""
    devices, draft_devices, more = MIXES[mix]
    cases = [*product(KINDS, HOW)]
    for i in range([*MIXES].index(mix) % 6, len(cases), 6):
        kind, how = cases[i]
        arch = ARCHS[i % len(ARCHS)] if more.get("split_mode") != "tensor" else "llama"
        model, options = made(arch, 1), DraftOptions(draft_devices=draft_devices)
        draft = KINDS[kind](made, arch, 1)
        wanted = alone(model, sampling=HOW[how])
        with opened(model, devices, draft, options=options, **more) as session:
            found = list(session.generate(PROMPT, COUNT, HOW[how]))
            timing = session.timing
        assert found == wanted, (kind, how)
        assert timing.decode_tokens == COUNT - 1
        assert COUNT - 2 <= timing.rounds + timing.accepted < COUNT  # no draft for the last token
        assert 0 <= timing.accepted <= timing.drafted <= 4 * timing.rounds
        if (kind, how) == ("itself", "greedy"):
            assert timing.accepted == timing.drafted
            assert timing.rounds == 6


@given(data=st.data())
@settings(max_examples=5)
def test_any_sizes(made, data):
    """Drafts of any length that are cut short, over the end of the context, several times."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(drafting, "Pacing", Eager)
        seed = data.draw(st.integers(0, 3))
        n_ctx = data.draw(st.sampled_from((24, 40)))
        longest = data.draw(st.integers(1, 9))
        options = DraftOptions(
            draft_max=longest,
            draft_min=data.draw(st.integers(0, longest)),
            draft_p_min=data.draw(st.sampled_from((0.0, 0.2, 0.6))),
        )
        how = HOW[data.draw(st.sampled_from(sorted(HOW)))]
        keep = data.draw(st.sampled_from((None, 2, -1)))
        draft = KINDS[data.draw(st.sampled_from(sorted(KINDS)))](made, "llama", seed)
        found = []
        for own in (None, draft):
            with opened(made("llama", seed), draft=own, options=options, n_ctx=n_ctx) as session:
                parts = [list(session.generate(PROMPT, n_ctx, how, keep=keep))]
                session.truncate(min(7, session.n_past))
                parts.append(list(session.generate((2, 7), 9, how)))
                session.reset()
                parts.append(list(session.generate((5,), 6, how, stop=frozenset(parts[0][3:4]))))
                found.append((parts, session.n_past))
        assert found[0] == found[1]


@pytest.mark.usefixtures("eager")
def test_drawn_tokens_have_the_models_distribution(made):
    check_distribution(made(vocab=4), made(seed=9, layers=1, vocab=4))


def check_distribution(model, draft, n_seeds=400):
    """Pairs of tokens of a vocabulary of four, drawn with a bad draft, by a test of chi-square."""
    with opened(model, draft=draft, options=DraftOptions(draft_max=2)) as session:

        def pair(seed):
            session.reset()
            tokens = session.generate((1,), 9, Sampling(temperature=2.0, seed=seed))
            return tuple(islice(tokens, 1, 3))

        found = Counter(map(pair, range(n_seeds)))
        assert 0 < session.timing.accepted < session.timing.drafted
        wanted = np.zeros((4, 4))
        for first in range(4):
            session.reset()
            p = softmax(session.feed((1,))[-1])[first]
            q = softmax(session.feed((first,))[-1])
            for second in range(4):
                third = softmax(session.feed((second,))[-1])
                wanted[second] += p * q[second] * third
                session.truncate(2)
    expected = n_seeds * wanted
    square = sum((found[i, j] - n) ** 2 / n for (i, j), n in np.ndenumerate(expected))
    assert square < 37.7  # 15 degrees of freedom, one in a thousand


def softmax(logits):
    weights = np.exp((logits.astype(np.float64) - logits.max()) / 2.0)
    return weights / weights.sum()


@pytest.mark.usefixtures("eager")
def test_logits_that_are_shown(made):
    """One row for each token that was fed, in order, and none of what was refused."""
    shown = []
    for draft in (None, made(layers=1)):
        rows = []
        with opened(made(), draft=draft) as session:
            stop = frozenset(alone(made())[20:21])
            tokens = list(session.generate(PROMPT, COUNT, stop=stop, on_logits=rows.append))
        shown.append((tokens, np.concatenate(rows)))
    assert shown[0][0] == shown[1][0]
    np.testing.assert_allclose(shown[0][1], shown[1][1], 1e-4, 1e-4)


@pytest.mark.usefixtures("eager")
def test_verification_downloads_eight_bytes_for_each_token(made):
    """Where devices choose tokens; the draft's steps are started ahead of each other."""
    model = made()
    with opened(model, ["sim:0"], model) as session:
        list(session.generate(PROMPT, 11))
        nbytes = sum(c.src.nbytes for c in session.last_plan.commands if isinstance(c, Download))
        assert nbytes == 8 * 5
        inner = session.draft.session
        assert inner.step_graph(8).digest == inner.last_plan.graph
        # The prompt, two steps ahead of each other, and what was accepted and not run.
        assert session.scheduler.plan_cache.misses == 2
        assert inner.scheduler.plan_cache.misses == 3


@pytest.mark.usefixtures("eager")
def test_a_draft_on_other_devices_runs_ahead_while_the_model_verifies(made, monkeypatch):
    """After a proposal that is accepted as a whole, the next one is known."""
    model, proposals = made(), []
    propose = Draft.propose

    def noted(self, known, count, sampler=None, **until):
        outer = len(session.scheduler._order._started)
        fed = len(self.session._tokens)
        found = propose(self, known, count, sampler, **until)
        proposals.append((outer, len(self.session._tokens) - fed))
        return found

    monkeypatch.setattr(Draft, "propose", noted)
    monkeypatch.setattr(StartedRows, "is_done", property(lambda self: False))
    with opened(model, ["sim:0"], model, options=DraftOptions(draft_devices=("sim:1",))) as session:
        assert list(session.generate(PROMPT, 21)) == alone(model, 21)
    ahead, before = proposals[2::2], proposals[3::2]
    assert all(outer == 1 and fed >= 4 for outer, fed in ahead[:-1])
    assert all(outer == 0 and fed == 0 for outer, fed in before)


@pytest.mark.usefixtures("eager")
def test_a_text_that_is_forgotten_is_not_proposed_again(made):
    """Otherwise a measurement that repeats a text would accept everything."""
    with opened(made(), draft=made(seed=9, layers=1)) as session:
        accepted = [0]
        for _ in range(3):
            session.reset()
            list(session.generate(PROMPT, COUNT))
            accepted.append(session.timing.accepted)
    assert {b - a for a, b in pairwise(accepted)} == {accepted[1]}


@pytest.mark.usefixtures("eager")
def test_plans_are_few(made):
    """Verification has one size; what a draft has missed is read in sizes of powers of two."""
    model, draft = made(), made(seed=9, layers=1)
    with opened(model, draft=draft, n_ctx=512) as session:
        list(session.generate(PROMPT, 20))
        verified = session.scheduler.plan_cache.misses
        misses = []
        for missed in range(2, 16):
            session.draft.session._cut(3)
            session.draft.propose(session._tokens[: 3 + missed], 1)
            misses.append(session.draft.session.scheduler.plan_cache.misses)
    assert verified == 3  # the prompt, verification, and the last token, which needs none
    assert len(set(misses)) <= 4


def test_drafts_that_gain_nothing_are_given_up(made, monkeypatch):
    """With a clock by which each call takes a second; plain steps go on as without a draft."""
    clock = iter(range(1 << 20))
    monkeypatch.setattr(drafting.time, "perf_counter", lambda: next(clock))
    model, draft = made(), made(seed=9, layers=1)
    with opened(model, ["sim:0"], draft) as session:
        assert list(session.generate(PROMPT, COUNT)) == alone(model)
        assert 0 < session.timing.rounds < 8
        assert session.timing.decode_tokens == COUNT - 1


@pytest.mark.usefixtures("eager")
def test_no_token_and_one_token(made):
    for count in (0, 1):
        with opened(made(), draft=made(layers=1)) as session:
            assert list(session.generate(PROMPT, count)) == alone(made(), count)
            assert session.timing.rounds == 0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("error", [DeviceFault, OutOfDeviceMemory, PlanError])
def test_a_draft_that_fails_is_left_out(made, monkeypatch, caplog, error):
    model, run = made(), Draft._run

    def faulty(self, tokens, *, goes_on):
        if len(self.session._tokens) > 12:
            raise error("a command failed")
        return run(self, tokens, goes_on=goes_on)

    monkeypatch.setattr(Draft, "_run", faulty)
    with opened(model, draft=model) as session, caplog.at_level(logging.WARNING):
        assert list(session.generate(PROMPT, COUNT)) == alone(model)
        assert session.draft is None
    assert "a command failed; going on without the draft model" in caplog.text


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("device", ["cpu:0", "sim:0"])
def test_a_draft_whose_logits_are_not_finite_is_left_out(made, tmp_path, caplog, device):
    arrays = tiny_arrays("llama", vocab=40)
    arrays["output_norm.weight"][:] = np.nan
    draft = load_model(tiny_gguf(tmp_path / "nan.gguf", vocab=40, arrays=arrays))
    with opened(made(), [device], draft) as session, caplog.at_level(logging.WARNING):
        assert list(session.generate(PROMPT, 8)) == alone(made(), 8)
        assert session.draft is None
        assert not session.batches.has_nonfinite
    assert "nan.gguf: computed logits that are not finite; going on without" in caplog.text


@pytest.mark.usefixtures("eager")
def test_tokens_that_the_model_does_not_have_are_not_verified(made, monkeypatch):
    """Vocabularies of a family differ in the padding of their matrices."""
    monkeypatch.setattr(Draft, "propose", lambda *_, **__: [1, 40, 2])
    with opened(made(), draft=made(layers=1)) as session:
        assert list(session.generate(PROMPT, 9)) == alone(made(), 9)
        assert session.timing.drafted == session.timing.rounds > 0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("abc", None),
        ("abcd", None),
        ("ab", None),
        ("axc", "token 1 is another text"),
        ("abc" + "z" * 200, "the model has 3 tokens, the draft 203"),
    ],
)
def test_vocabularies(tokens, message):
    def of(texts):
        tokenizer = SimpleNamespace(has_text=True, vocab=SimpleNamespace(tokens=tuple(texts)))
        hparams, file = SimpleNamespace(n_vocab=len(texts)), SimpleNamespace(path="draft.gguf")
        return SimpleNamespace(tokenizer=tokenizer, hparams=hparams, file=file)

    if message is None:
        check_vocabularies(of("abc"), of(tokens))
        return
    with pytest.raises(UsageError, match=message):
        check_vocabularies(of("abc"), of(tokens))


@pytest.mark.usefixtures("eager")
def test_the_model_fails_and_goes_on(made, monkeypatch):
    """Without the draft, whose devices may be those that are opened again."""
    model, faults, start = made(), [DeviceFault("a command failed")], BatchRunner.start_rows

    def faulty(self, tokens, n_past, *args, **more):
        if self is session.batches and n_past > 12 and faults:
            raise faults.pop()
        return start(self, tokens, n_past, *args, **more)

    monkeypatch.setattr(BatchRunner, "start_rows", faulty)
    with opened(model, draft=made(layers=1)) as session:
        assert list(session.generate(PROMPT, COUNT, retries=1)) == alone(model)
        assert not faults
        assert session.draft is None


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("where", [(Draft, "_guess"), (DraftedSteps, "_verified")])
def test_an_interruption_leaves_the_session_as_it_was(made, monkeypatch, where):
    model, (owner, name) = made(), where
    whole = getattr(owner, name)

    def interrupted(self, *args, **more):
        if armed and not armed.pop():
            raise KeyboardInterrupt
        return whole(self, *args, **more)

    monkeypatch.setattr(owner, name, interrupted)
    armed = [False, True, True, True]
    wanted = alone(model)
    with opened(model, draft=made(layers=1)) as session:
        tokens = session.generate(PROMPT, COUNT)
        found = []
        with pytest.raises(KeyboardInterrupt):
            found.extend(tokens)
        assert found == wanted[: len(found)]
        assert session.n_past == len(PROMPT) + len(found) - 1
        assert list(session.generate(found[-1:], 9)) == wanted[len(found) : len(found) + 9]


def test_what_is_refused(made, tmp_path):
    recurrent = load_model(write_reference(tmp_path / "recurrent.gguf", RECURRENT[0]))
    with opened(made()) as session:
        with pytest.raises(UsageError, match="has another vocabulary: the model has 40 tokens"):
            session.use_draft(made(vocab=4))
        with pytest.raises(UsageError, match="a draft cannot be cut: blocks of .* keep a state"):
            session.use_draft(recurrent)
        for options, message in (
            (DraftOptions(draft_max=0), "--draft-max 0|-md 0|must be at least 1"),
            (DraftOptions(draft_min=5), "no proposal would be verified"),
            (DraftOptions(draft_p_min=1.5), "from 0 to 1"),
            (DraftOptions(draft_devices=("nothing:0",)), "nothing"),
            (DraftOptions(draft_devices=("ray://a/cpu:0",)), "cannot be on ray://a/cpu:0"),
        ):
            with pytest.raises(UsageError, match=message):
                session.use_draft(made(layers=1), options)
        assert session.draft is None
        assert list(session.generate(PROMPT, 5)) == alone(made(), 5)
    with pytest.raises(UsageError, match="the session is closed"):
        session.use_draft(made(layers=1))
    assert session.draft is None
    for step, options in ((1, None), (4, DraftOptions(draft_min=4))):
        message = f"a draft needs micro-batches of {step + 1} tokens: they have {step} "
        with opened(made(), n_ubatch=step) as session, pytest.raises(UsageError, match=message):
            session.use_draft(made(layers=1), options)
    with opened(recurrent) as session, pytest.raises(UsageError, match="cannot be cut"):
        session.use_draft(made())


@pytest.mark.parametrize("names", [("cpu",), ("cpu:0", "cpu"), ("cpu:0", "cpu:0")])
def test_a_device_that_the_model_has_is_not_opened_again(made, names):
    options = DraftOptions(draft_devices=names)
    with opened(made(), ["cpu:0"], made(layers=1), options=options) as session:
        assert session.draft.session.scheduler.devices == session.scheduler.devices
        assert not session.draft.is_apart


@pytest.mark.usefixtures("eager")
def test_where_a_draft_runs_changes_nothing(made, monkeypatch):
    """It proposes the same after what it ran ahead was refused."""
    monkeypatch.setattr(StartedRows, "is_done", property(lambda self: False))
    found = []
    for devices in (None, ("sim:1",)):
        options = DraftOptions(draft_devices=devices)
        with opened(made(), ["sim:0"], made(layers=1), options=options) as session:
            list(session.generate(PROMPT, COUNT))
            list(session.generate((9, 9, 9), 11))
            found.append((session.timing.drafted, session.timing.accepted))
    assert found[0] == found[1]
    assert 0 < found[0][1] < found[0][0]
