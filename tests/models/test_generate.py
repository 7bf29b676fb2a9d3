"""Sessions: buckets of the cache, plans that are kept, limits of the context, choosing tokens."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.config import Settings
from ggsched.errors import DeviceFault, ModelError, UsageError
from ggsched_llm.batches import batch_inputs, kv_bucket
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload
from ggsched_llm.sampling import Sampler, Sampling
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.token_inputs import TokenInputs
from tests.models.helpers import ORACLE

PROMPT = (3, 1, 4, 1, 5, 9, 2)


@pytest.fixture(scope="module")
def model():
    return load_model(ORACLE / "llama-tiny-f32.gguf")


@pytest.fixture
def session(model):
    with Session(model, ["cpu:0"], SessionOptions(n_ctx=64), settings=Settings()) as made:
        yield made


def opened(model, **sizes):
    return Session(model, ["cpu:0"], SessionOptions(**sizes), settings=Settings())


class TestBuckets:
    @given(n_ctx=st.integers(1, 5000), data=st.data())
    def test_hold_what_is_used_and_seldom_change(self, n_ctx, data):
        used = data.draw(st.integers(1, n_ctx))
        bucket = kv_bucket(used, n_ctx)
        assert used <= bucket <= n_ctx
        assert bucket <= max(256, 2 * used)
        assert bucket <= 32 or used > 32
        if used < n_ctx:
            assert kv_bucket(used + 1, n_ctx) >= bucket
        if used < bucket:  # growing within the bucket keeps it
            assert kv_bucket(used + 1, n_ctx) == bucket

    def test_values(self):
        found = [kv_bucket(n, 9999) for n in (1, 32, 33, 256, 257, 512, 513, 1024)]
        assert found == [32, 32, 256, 256, 512, 512, 1024, 1024]
        found = [kv_bucket(n, 9999) for n in (1025, 1536, 1537, 2049, 4096, 4097, 8192, 8193)]
        assert found == [2048, 2048, 2048, 4096, 4096, 8192, 8192, 9999]

    def test_are_few(self):
        assert len({kv_bucket(n, 4096) for n in range(1, 4097)}) == 6
        assert len({kv_bucket(n, 1 << 17) for n in range(1, 1 << 17)}) == 11

    def test_change_at_every_doubling_at_most(self):
        sizes = sorted({kv_bucket(n, 1 << 20) for n in range(1, 1 << 17)})
        assert all(b >= 2 * a for a, b in pairwise(sizes))


class TestPlans:
    def test_one_for_each_bucket(self, session):
        tokens = list(session.generate(PROMPT, 41))
        assert len(tokens) == 41
        # The prompt, then decoding with 32 rows of the cache and with 64.
        assert session.scheduler.plan_cache.misses == 3
        session.reset()
        assert list(session.generate(PROMPT, 41)) == tokens
        assert session.scheduler.plan_cache.misses == 3

    def test_a_cache_that_grows_to_4096_rows_makes_six(self, model):
        """One at every doubling at most."""
        with opened(model, n_ctx=4096) as session:
            made = []
            for past in range(4096):
                session.plan(1, n_past=past)
                if session.scheduler.plan_cache.misses > len(made):
                    made.append(past + 1)
            assert made == [1, 33, 257, 513, 1025, 2049]

    def test_micro_batches_share_them(self, model):
        with opened(model, n_ctx=64, n_ubatch=3) as session:
            session.feed([1] * 30, all_logits=True)
            assert session.scheduler.plan_cache.misses == 1
            session.feed([1] * 4)
            assert session.scheduler.plan_cache.misses == 3  # 3 of 64 rows, 1 of 64 rows

    def test_planning_is_counted_once(self, session):
        list(session.generate(PROMPT, 2))
        spent = session.timing.planning_s
        assert spent > 0
        session.reset()
        list(session.generate(PROMPT, 2))
        assert session.timing.planning_s == spent

    def test_a_plan_can_be_had_without_loading_anything(self, session):
        plan = session.plan(5, n_past=30, n_out=2)
        assert plan.name.endswith("T5 N64")
        assert session.scheduler.resident_nbytes("weight") == {}


class TestSequence:
    @pytest.mark.parametrize("sizes", [(7,), (1, 6), (3, 3, 1), (1,) * 7])
    def test_parts_are_as_good_as_the_whole(self, session, sizes):
        whole = session.feed(PROMPT, all_logits=True)
        session.reset()
        parts, at = [], 0
        for size in sizes:
            parts.append(session.feed(PROMPT[at : at + size], all_logits=True))
            at += size
        np.testing.assert_allclose(np.concatenate(parts), whole, atol=2e-5)
        assert session.n_past == 7

    @pytest.mark.parametrize(("n_batch", "n_ubatch"), [(4, 2), (2, 4), (1, 1), (100, 100)])
    def test_the_smaller_of_batch_and_micro_batch_counts(self, model, n_batch, n_ubatch):
        with opened(model, n_ctx=32, n_batch=n_batch, n_ubatch=n_ubatch) as session:
            logits = session.feed(PROMPT, all_logits=True)
            assert logits.shape == (7, 256)
            wanted = min(n_batch, n_ubatch)
            assert session.last_plan.name.split()[-2] == f"T{(7 - 1) % wanted + 1}"

    def test_last_logits_are_those_of_the_last_token(self, session):
        every = session.feed(PROMPT, all_logits=True)
        session.reset()
        last = session.feed(PROMPT)
        assert last.shape == (1, 256)
        np.testing.assert_allclose(last[0], every[-1], atol=2e-5)

    def test_what_was_forgotten_does_not_matter(self, session):
        fresh = session.feed(PROMPT)
        session.reset()
        session.feed([250] * 40)
        session.reset()
        np.testing.assert_array_equal(session.feed(PROMPT), fresh)

    def test_a_failure_leaves_the_sequence_as_it_was(self, model, monkeypatch):
        with opened(model, n_ctx=64, n_ubatch=3) as session:
            session.feed(PROMPT[:2])
            wanted = session.feed(PROMPT[2:])
            session.reset()
            session.feed(PROMPT[:2])
            runs = []

            def failing(graph, inputs, constraints, *, copy, run=session.scheduler.run):
                runs.append(graph)
                if len(runs) == 2:
                    raise DeviceFault("power cut")
                return run(graph, inputs, constraints, copy=copy)

            monkeypatch.setattr(session.scheduler, "run", failing)
            with pytest.raises(DeviceFault):
                session.feed(PROMPT[2:])
            assert session.n_past == 2
            np.testing.assert_array_equal(session.feed(PROMPT[2:]), wanted)


class TestLimits:
    @pytest.mark.parametrize(
        ("tokens", "message"),
        [
            ([], "no tokens to feed"),
            ([256], "token 256 is not in the vocabulary: it has 256"),
            ([1, -1], "token -1 is not in the vocabulary"),
            ([1] * 65, "0 + 65 tokens do not fit the context: it holds 64"),
        ],
    )
    def test_refused(self, session, tokens, message):
        with pytest.raises(UsageError) as caught:
            session.feed(tokens)
        assert message in str(caught.value)
        assert session.n_past == 0

    def test_full(self, session):
        session.feed([1] * 64)
        with pytest.raises(UsageError, match=r"64 \+ 1 tokens do not fit"):
            session.feed([1])

    def test_generation_ends_where_the_context_does(self, model, caplog):
        with opened(model, n_ctx=10) as session:
            assert len(list(session.generate(PROMPT, 50))) == 4  # 3 are fed, the last is not
            assert session.n_past == 10
        assert "the context of 10 tokens is full" in caplog.text

    @pytest.mark.parametrize(("keep", "stays"), [(0, 0), (2, 2), (-1, len(PROMPT))])
    def test_a_shifted_context_is_a_sequence_of_its_own(self, model, caplog, keep, stays):
        """Each token is the one that follows what is left of the others."""
        with opened(model, n_ctx=12) as session, opened(model, n_ctx=12) as other:
            found = list(session.generate(PROMPT, 20, keep=keep))
            seen = list(PROMPT)
            for token in found:
                if len(seen) == 13:  # the last token found the context full
                    del seen[stays : stays + (len(seen) - stays) // 2]
                other.reset()
                assert token == int(other.feed(seen)[0].argmax())
                seen.append(token)
        assert len(found) == 20
        assert not caplog.text

    @pytest.mark.parametrize(
        ("keep", "message"), [(11, "cannot keep 11 tokens"), (-2, "cannot keep -2 tokens")]
    )
    def test_keeping_everything(self, model, keep, message):
        with opened(model, n_ctx=12) as session, pytest.raises(UsageError, match=message):
            next(session.generate(PROMPT, 20, keep=keep))

    def test_tokens_that_generation_has_not_seen(self, model):
        with opened(model, n_ctx=12) as session:
            session.feed([1])
            with pytest.raises(UsageError, match="which generation has not seen"):
                next(session.generate(PROMPT, 20, keep=0))

    @pytest.mark.parametrize("sizes", [{"n_ctx": 0}, {"n_batch": 0}, {"n_ubatch": -1}])
    def test_sizes(self, model, sizes):
        with pytest.raises(UsageError, match="at least 1"):
            opened(model, **sizes)

    def test_rules_that_make_no_sense_leave_no_device_open(self, model):
        with pytest.raises(UsageError, match="not negative"):
            opened(model, offload=Offload(n_gpu_layers=-1))

    def test_closed_twice(self, model):
        session = opened(model)
        session.feed([1])
        session.close()
        session.close()
        with pytest.raises(UsageError, match="closed"):
            session.feed([1])


class TestGenerate:
    def rows(self, session, n, **options):
        fed = []
        tokens = list(session.generate(PROMPT, n, on_logits=fed.append, **options))
        return tokens, np.concatenate(fed)

    @pytest.mark.parametrize("n", [0, 1, 5])
    def test_logits_of_all_that_is_fed(self, session, n):
        tokens, logits = self.rows(session, n)
        assert len(tokens) == n
        assert logits.shape == (7 + max(0, n - 1), 256)
        assert [int(row.argmax()) for row in logits[6:]][:n] == tokens
        assert session.n_past == len(logits)

    def test_stops(self, session):
        plain = list(session.generate(PROMPT, 6))
        at = next(i for i in range(6) if plain[i] not in plain[:i] and i >= 2)
        session.reset()
        tokens, logits = self.rows(session, 6, stop=frozenset({plain[at]}))
        assert tokens == plain[:at]
        assert len(logits) == 7 + at  # the stop token is not fed

    def test_seeds(self, session):
        def drawn(seed):
            session.reset()
            return list(session.generate(PROMPT, 8, Sampling(2.0, seed)))

        first = drawn(1)
        assert drawn(1) == first
        assert len({tuple(drawn(seed)) for seed in range(5)}) > 1

    def test_timing(self, session):
        list(session.generate(PROMPT, 5))
        assert (session.timing.prompt_tokens, session.timing.decode_tokens) == (7, 4)


class TestSampler:
    def test_greedy_takes_the_first_of_equals(self):
        assert Sampler(Sampling()).choose(np.array([1, 3, 3, 2], np.float32)) == 1

    def test_frequencies(self):
        logits = np.log(np.array([0.5, 0.3, 0.2, 1e-9], np.float32))
        sampler = Sampler(Sampling(1.0, 7))
        drawn = np.bincount([sampler.choose(logits) for _ in range(4000)], minlength=4) / 4000
        np.testing.assert_allclose(drawn, [0.5, 0.3, 0.2, 0], atol=0.03)

    def test_a_high_temperature_levels_and_a_low_one_sharpens(self):
        logits = np.array([0, 1, 2], np.float32)

        def share(temperature):
            sampler = Sampler(Sampling(temperature, 1))
            return np.mean([sampler.choose(logits) == 2 for _ in range(1000)])

        assert share(100.0) < 0.4 < share(1.0) < share(0.2)

    @pytest.mark.parametrize("temperature", [1e-9, 1e-40, 5e-324])
    def test_near_zero_it_is_greedy(self, temperature):
        sampler = Sampler(Sampling(temperature))
        logits = np.array([-3e38, 5, 4.999, 3], np.float32)
        assert {sampler.choose(logits) for _ in range(20)} == {1}

    def test_masked_tokens_are_never_drawn(self):
        sampler = Sampler(Sampling(5.0))
        logits = np.array([-np.inf, 0, -np.inf, 0], np.float32)
        assert {sampler.choose(logits) for _ in range(50)} == {1, 3}

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_logits_that_are_no_numbers(self, temperature, bad):
        with pytest.raises(ModelError, match="largest logit"):
            Sampler(Sampling(temperature)).choose(np.array([0, bad, 1], np.float32))

    def test_nothing_to_choose(self):
        with pytest.raises(ModelError):
            Sampler(Sampling()).choose(np.full(3, -np.inf, np.float32))


class TestInputs:
    def test_bounds_rows_and_window(self):
        model = load_model(ORACLE / "gptoss-tiny-f32.gguf")
        with Session(model, ["cpu:0"], SessionOptions(n_ctx=32), settings=Settings()) as session:
            graph = session.graph(3, 10, 2)
            inputs = batch_inputs(graph, np.array([5, 6, 7], np.int32), 10, 2, 8)
        np.testing.assert_array_equal(inputs["positions"], [10, 11, 12])
        np.testing.assert_array_equal(inputs["kv_rows"], [10, 11, 12])
        np.testing.assert_array_equal(inputs["out_rows"], [1, 2])
        for i, position in enumerate((10, 11, 12)):
            np.testing.assert_array_equal(inputs["bounds"][i], [0, position + 1])
            window = [position - 7, position + 1]
            np.testing.assert_array_equal(inputs["bounds_window"][i], window)

    @pytest.mark.parametrize("file", ["gptoss-tiny-f32.gguf", "llama-tiny-f32.gguf"])
    def test_of_one_token_without_arrays_of_its_own(self, file):
        model = load_model(ORACLE / file)
        window = model.hparams.window
        with Session(model, ["cpu:0"], SessionOptions(n_ctx=32), settings=Settings()) as session:
            graph = session.graph(1, 10, 1)
        known = TokenInputs(graph, window)
        for token, n_past in ((7, 0), (5, 3), (9, 30), (0, 8), (1, 0)):
            expected = batch_inputs(graph, np.array([token], np.int32), n_past, 1, window)
            found = known.at(token, n_past)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                assert found[name].dtype == value.dtype
                np.testing.assert_array_equal(found[name], value, strict=True)


def test_reset_after_numbers_that_are_not_finite(session):
    """Rows that no token sees may be read: NaN there could come through, as 0 x NaN."""
    expected = session.feed(PROMPT)
    for resident in session.scheduler._store._resident.values():
        if resident.kind == "state":
            np.frombuffer(resident.buffer.host_view(), np.float32)[:] = np.nan
    assert not np.isfinite(session.feed(PROMPT[:1])).all()
    session.reset()
    np.testing.assert_array_equal(session.feed(PROMPT), expected)
