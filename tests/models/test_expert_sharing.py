"""Devices that have different experts of a layer compute what one device computes."""

import re
from dataclasses import replace
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.dtype import dtype_by_name
from ggsched.sanitize import check_plan
from ggsched_llm.expert_sharing import (
    ExpertOptions,
    ExpertRange,
    expected_slowest,
    read_expert_split,
)
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule, copied_output
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.sharing import Sharing
from ggsched_shard.layout import Split
from ggsched_shard.names import part_of
from tests.models.helpers import ORACLE, opened_once, tiny_gguf
from tests.models.reference_models import write_reference
from tests.models.test_tensor_split import RELATIVE, assert_close, facts
from tests.support.shapes import GPT_OSS_20B, spec_of

PAIR, MIXED = ("cpu:0", "cpu:1"), ("opencl:0", "cpu:0")
SIMULATED = ("sim:0", "sim:1", "sim:2")
NAMES = ("qwen3moe-tiny-f32", "gptoss-tiny-f32")


@pytest.fixture(scope="module")
def devices():
    """Open devices once; a function from names to devices."""
    with opened_once() as get:
        yield get


def by_expert(model, devices, split="", *, ubatch=32, **options):
    """Open a session whose devices have different experts."""
    ranges = read_expert_split(split) if split else ()
    given = {"n_ctx": 64, "n_ubatch": ubatch, "split_mode": "tensor", **options}
    sizes = SessionOptions(experts=ExpertOptions("auto" if ranges else "on", ranges), **given)
    return Session(model, devices, sizes, settings=Settings())


def axes(session):
    """Return by which axes the weights of experts are split."""
    layouts = session.sharing.shards.layouts
    return {
        layout.axis
        for name, layout in layouts.items()
        if "_exps." in name and isinstance(layout, Split)
    }


def test_experts_and_their_biases_are_whole_on_a_device(devices):
    """Of each device its range, which is used where the file is mapped."""
    model = load_model(ORACLE / "gptoss-tiny-f32.gguf")
    count = model.hparams.n_expert
    with by_expert(model, devices(PAIR), f"0:1-{count - 1},cpu:1:0-0") as session:
        assert axes(session) == {0}
        sharing, name = session.sharing, "blk.1.ffn_down_exps"
        whole = sharing.array(model, f"{name}.weight")
        for part, span in ((0, slice(1, count)), (1, slice(0, 1))):
            own = sharing.array(model, f"{name}.weight#{part}")
            np.testing.assert_array_equal(own, whole[span])
            assert np.shares_memory(own, whole)
            assert sharing.is_mapped(f"{name}.weight#{part}")
            bias = sharing.array(model, f"{name}.bias#{part}")
            assert len(bias) == len(own)
        reason = session.homes.reasons[f"{name}.weight#0"]
        assert reason == f"1:{count} of axis 0 (-sm tensor, --expert-split)"


@st.composite
def cases(draw):
    """A model, devices that share its layers, and which experts each of them has."""
    name = draw(st.sampled_from(NAMES))
    devices = draw(st.sampled_from([PAIR, MIXED, SIMULATED]))
    count = load_model(ORACLE / f"{name}.gguf").hparams.n_expert
    inner = len(devices) - 1
    cuts = draw(st.lists(st.integers(0, count), min_size=inner, max_size=inner))
    ends = [0, *sorted(cuts), count]
    owners = draw(st.permutations(range(len(devices))))
    ranges = [
        f"{owner}:{first}-{stop - 1}"
        for owner, first, stop in zip(owners, ends, ends[1:], strict=False)
        if first < stop
    ]
    return name, devices, ",".join(ranges), draw(st.sampled_from([7, 32]))


@settings(max_examples=max(4, settings().max_examples // 4))
@given(cases())
def test_logits_are_those_of_llama_cpp(devices, case):
    """Prompts of several micro-batches and decoding, whatever experts each device has."""
    name, names, split, ubatch = case
    with np.load(ORACLE / f"{name}.npz") as arrays:
        recorded = dict(arrays)
    model = load_model(ORACLE / f"{name}.gguf")
    with by_expert(model, devices(names), split, ubatch=ubatch) as session:
        found = session.feed(recorded["tokens_33"], all_logits=True)
        assert_close(found, recorded["logits_33"], RELATIVE.get(name.rsplit("-", 1)[1]))
        session.reset()
        rows = [session.feed(recorded["dec_prompt"])]
        rows += [session.feed([token]) for token in recorded["dec_tokens"][:2]]
        assert_close(np.concatenate(rows), recorded["dec_logits"][: len(rows)], None)
        assert check_plan(session.last_plan).is_clean


def test_one_sum_for_the_experts_of_a_layer(devices):
    """Rows of experts, their biases and gates stay where they are; nothing else is exchanged."""
    model = load_model(ORACLE / "gptoss-tiny-f32.gguf")
    with by_expert(model, devices(PAIR)) as session:
        graph = session.graph(1, 0, 1)
    sums = {part_of(n.name)[0] for n in graph.nodes if part_of(n.name)[0].endswith("_sum")}
    assert sums == {
        f"blk.{layer}.{what}_sum"
        for layer in range(model.hparams.n_layer)
        for what in ("ffn_moe_out", "kqv_out_b")
    }


@pytest.mark.parametrize("name", ["qwen2moe-q8_0", "deepseek2-f32", "glm4moe-f32"])
def test_shared_experts_and_packed_ones(tmp_path, devices, name):
    """Experts that all tokens share stay divided by columns."""
    model = load_model(write_reference(tmp_path / "model.gguf", name))
    tokens = np.random.default_rng(0).integers(0, model.hparams.n_vocab, 9)
    options = SessionOptions(n_ctx=32, n_ubatch=8)
    with Session(model, devices(("cpu:0",)), options, settings=Settings()) as one:
        wanted = np.concatenate([one.feed(tokens, all_logits=True), one.feed([3])])
    with by_expert(model, devices(PAIR), n_ctx=32, ubatch=8) as session:
        found = np.concatenate([session.feed(tokens, all_logits=True), session.feed([3])])
        layouts = session.sharing.shards.layouts
        shared = [n for n in layouts if "_shexp.weight" in n]
        assert axes(session) == {0}
        assert all(getattr(layouts[n], "axis", 0) < 2 for n in shared)
    assert_close(found, wanted, None if name.endswith("f32") else 3e-2)


def test_groups_have_all_experts_each(tmp_path, devices):
    """Two stages of two devices; each pair divides the experts of its layers in its own way."""
    model = load_model(tiny_gguf(tmp_path / "model.gguf", "gpt-oss", layers=4, vocab=32))
    count = model.hparams.n_expert
    tokens = np.arange(24) % 32
    with Session(model, devices(("cpu:0",)), SessionOptions(n_ctx=32)) as one:
        wanted = np.concatenate([one.feed(tokens, all_logits=True), one.feed([3])])
    split = f"0:0-0,1:1-{count - 1},2:1-{count - 1},3:0-0"
    four = devices(tuple(f"sim:{i}" for i in range(4)))
    sizes = {"n_ctx": 32, "ubatch": 6, "group_size": 2, "pipelining": "on"}
    with by_expert(model, four, split, **sizes) as session:
        found = np.concatenate([session.feed(tokens, all_logits=True), session.feed([3])])
        assert check_plan(session.last_plan).is_clean
    assert_close(found, wanted, None)


def test_beside_experts_on_the_cpu(devices):
    """Those of the first blocks stay on the CPU, the rest is divided by expert."""
    with np.load(ORACLE / "qwen3moe-tiny-f32.npz") as arrays:
        tokens, wanted = arrays["tokens_33"], arrays["logits_33"]
    model = load_model(ORACLE / "qwen3moe-tiny-f32.gguf")
    offload = Offload(n_cpu_moe=1, tensor_split=(3.0, 1.0))
    names = devices(("sim:0", "sim:1", "cpu:0"))
    with by_expert(model, names, ubatch=7, offload=offload) as session:
        assert_close(session.feed(tokens, all_logits=True), wanted, None)
        homes = session.homes.devices
        layout = session.sharing.shards.layout("blk.1.ffn_up_exps.weight")
    assert homes["blk.0.ffn_up_exps.weight"] == 2
    assert layout.extent(0) == 3 * layout.extent(1)


@settings(max_examples=max(4, settings().max_examples // 10))
@given(st.data())
def test_any_tensor_of_experts_on_any_device(devices, data):
    """Whatever ``-ot`` names lives whole where it says, beside experts by expert."""
    with np.load(ORACLE / "gptoss-tiny-f32.npz") as arrays:
        tokens, wanted = arrays["tokens_33"], arrays["logits_33"]
    model, names = load_model(ORACLE / "gptoss-tiny-f32.gguf"), ("sim:0", "sim:1", "cpu:0")
    parts = [n for n in model.spec.weights if "_exps." in n]
    chosen = data.draw(st.sets(st.sampled_from(parts), min_size=1, max_size=4))
    overrides = tuple(
        OverrideRule(re.compile(f"^{re.escape(part)}$"), data.draw(st.sampled_from(names)))
        for part in sorted(chosen)
    )
    with by_expert(model, devices(names), offload=Offload(overrides=overrides)) as session:
        assert_close(session.feed(tokens, all_logits=True), wanted, None)


# --- which way ----------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any),
    st.data(),
)
def test_the_slowest_of_all_choices(counts, data):
    """The expectation is that of all sets of experts that can be chosen."""
    from itertools import combinations

    used = data.draw(st.integers(1, sum(counts)))
    each = data.draw(st.tuples(*(st.sampled_from([1.0, 2.0, 3.5]) for _ in counts)))
    owner = [p for p, n in enumerate(counts) for _ in range(n)]
    slowest = [
        max(sum(owner[e] == p for e in chosen) * s for p, s in enumerate(each))
        for chosen in combinations(range(len(owner)), used)
    ]
    assert len(slowest) == comb(len(owner), used)
    found = expected_slowest(tuple(counts), used, each)
    assert found == pytest.approx(sum(slowest) / len(slowest))


def qwen3moe(dtype="q4_k", ff=768):
    """Return two blocks of the shape of Qwen3 30B A3B, the experts of a width."""
    shape = replace(
        GPT_OSS_20B, arch="qwen3moe", n_layer=2, n_embd=2048, n_head=32, n_head_kv=4, head_dim=128,
        n_ff=ff, n_expert=128, n_expert_used=8, window=0,
    )  # fmt: skip
    return copied(spec_of(shape, dtype_by_name(dtype)))


def copied(spec):
    return copied_output(spec) if spec.is_tied else spec


@pytest.mark.parametrize(
    ("ff", "count", "memory_gib", "axis"),
    [
        (768, 2, 80, 0),  # three blocks of 256 columns: two and one
        (1024, 2, 80, 1),  # as many columns for each, and nobody waits
        (768, 4, 80, 1),  # a third of each token's experts, for three; by expert more is expected
        (768, 4, 0.28, 0),  # three devices have no memory for a third
    ],
)
def test_the_way_that_fits_and_takes_less_time_is_chosen(ff, count, memory_gib, axis):
    devices = [replace(d, memory_nbytes=int(memory_gib * (1 << 30))) for d in facts(count)]
    sharing = Sharing.of(qwen3moe(ff=ff), devices, SessionOptions(split_mode="tensor"))
    layout = sharing.shards.layout("blk.0.ffn_up_exps.weight")
    assert layout.axis == axis
    reason = sharing.homes.reasons["blk.0.ffn_up_exps.weight#0"]
    words = ("by expert", "by columns")[:: 1 - 2 * axis]
    assert re.search(f"{words[0]}: .*{words[1]}", reason)
    assert ("more than there is" in reason) == (memory_gib < 1)


def test_devices_that_take_all_experts_or_none_have_columns_of_them():
    """Those that were written before ignore which experts a weight has."""
    old = replace(facts(2)[1], takes_expert_ranges=False)
    devices, asked = [facts(2)[0], old], SessionOptions(split_mode="tensor")
    sharing = Sharing.of(qwen3moe(), devices, asked)
    assert not sharing.is_by_expert
    assert f"{old.name} takes all experts or none" in sharing.why
    for experts in (ExpertOptions("on"), ExpertOptions(split=read_expert_split("0:0-63,1:64-127"))):
        with pytest.raises(UsageError, match=f"{old.name}.*takes_expert_ranges"):
            Sharing.of(qwen3moe(), devices, replace(asked, experts=experts))


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "what"),
    [
        ("0:0-3,1:2-7", "1:2-7: another device of the group has expert 2"),
        ("0:0-2,1:4-7", "no device of a group has expert 3 of 8"),
        ("0:0-3", "no device of a group has expert 4 of 8"),
        ("0:0-3,1:4-8", "1:4-8: the model has 8 experts"),
        ("0:0-3,5:4-7", "5:4-7: devices in use, from 0 on: sim:0, sim:1, cpu:0"),
        ("0:0-3,cuda:1:4-7", "--expert-split names the device 'cuda:1'"),
        ("0:0-3,2:4-7", "2:4-7: cpu:0 shares no layers"),
        ("0:0-1,1:2-5,0:6-7", "0:6-7: sim:0 has two ranges"),
    ],
)
def test_ranges_that_are_refused(split, what):
    model = load_model(ORACLE / "qwen3moe-tiny-f32.gguf")
    assert model.hparams.n_expert == 8
    with pytest.raises(UsageError, match=re.escape(what)) as raised:
        by_expert(model, ["sim:0", "sim:1", "cpu:0"], split)
    assert "\n" not in raised.value.one_line()


@pytest.mark.parametrize("text", ["", "0", "0:", "0:1", "0:1-", "0:3-2", "0:0-3,"])
def test_texts_that_are_no_ranges(text):
    with pytest.raises(ValueError, match="is not DEVICE:FIRST-LAST|before the first"):
        read_expert_split(text)


def test_ranges_are_read():
    assert read_expert_split("cuda:1:0-15, 3:16-31") == (
        ExpertRange("cuda:1", 0, 16),
        ExpertRange("3", 16, 32),
    )


@pytest.mark.parametrize(
    ("name", "count", "options", "what"),
    [
        ("llama-tiny-f32", 2, {"parallel": "on"}, "--expert-parallel: the model has no experts"),
        ("llama-tiny-f32", 2, {"split": "0:0-1"}, "--expert-split: the model has no experts"),
        ("qwen3moe-tiny-f32", 9, {"parallel": "on"}, "9 devices for 8 experts"),
        (
            "qwen3moe-tiny-f32", 2, {"parallel": "off", "split": "0:0-7"},
            "--expert-split with --expert-parallel off",
        ),
        ("qwen3moe-tiny-f32", 2, {"parallel": "maybe"}, "--expert-parallel maybe"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(name, count, options, what):
    model = load_model(ORACLE / f"{name}.gguf")
    given = dict(options)
    if "split" in given:
        given["split"] = read_expert_split(given["split"])
    sizes = SessionOptions(n_ctx=16, split_mode="tensor", experts=ExpertOptions(**given))
    with pytest.raises(UsageError, match=re.escape(what)):
        Session(model, [f"sim:{i}" for i in range(count)], sizes)


def test_more_devices_than_experts_have_columns_of_them():
    model = load_model(ORACLE / "qwen3moe-tiny-f32.gguf")
    sizes = SessionOptions(n_ctx=16, split_mode="tensor")
    with Session(model, [f"sim:{i}" for i in range(9)], sizes) as session:
        assert 0 not in axes(session)


def test_layers_on_one_device_have_their_experts_there():
    with pytest.raises(UsageError, match="--expert-parallel with -sm layer"):
        SessionOptions(experts=ExpertOptions("on")).check()
