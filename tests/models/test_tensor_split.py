"""Devices that share each layer compute what one device computes.

Logits of one device, and those that llama.cpp computed (see ``tests/data/oracle``); decoding, long
and short micro-batches, several devices of several kinds, uneven shares.
"""

import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggsched.config import Settings
from ggsched.errors import UsageError
from ggsched.ir.dtype import BF16, dtype_by_name
from ggsched.plan.stats import plan_stats
from ggsched.sanitize import check_plan
from ggsched_llm.batches import BatchSize
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule, copied_output
from ggsched_llm.session import Session, SessionOptions
from ggsched_llm.sharing import Sharing
from ggsched_llm.tensor_split import find_participants, split_model
from ggsched_shard.layout import Split, Whole
from ggsched_shard.names import part_of
from ggsched_shard.rewrite import shard_graph
from ggsched_testing.sim import SimConfig, SimWorld
from tests.models.helpers import ORACLE, opened_once, tiny_gguf, wide_gguf
from tests.models.reference_models import REFERENCES, write_reference
from tests.support.shapes import GPT_OSS_20B, LLAMA_8B, spec_of

PAIR, MIXED, THREE = ("cpu:0", "cpu:1"), ("opencl:0", "cpu:0"), ("cpu:0", "cpu:1", "opencl:0")
SIMULATED = ("sim:0", "sim:1", "sim:2")
ABSOLUTE = 1e-4
RELATIVE = {"f16": 2e-3, "q8_0": 3e-2}
PACKED = 3e-2
"""Difference over the standard deviation of logits where activations are rounded to 8 bits."""


@pytest.fixture(scope="module")
def devices():
    """Open devices once; a function from names to devices."""
    with opened_once() as get:
        yield get


def shared(model, devices, split=None, *, ubatch=32, n_ctx=64, **options):
    """Open a session whose devices share layers."""
    sizes = SessionOptions(
        n_ctx=n_ctx,
        n_ubatch=ubatch,
        split_mode="tensor",
        offload=Offload(tensor_split=split),
        **options,
    )
    return Session(model, devices, sizes, settings=Settings())


def assert_close(found, wanted, tolerance):
    difference = np.abs(found.astype(np.float64) - wanted)
    if tolerance is None:
        assert difference.max() < 2 * ABSOLUTE
    else:
        rms = np.sqrt((difference**2).mean(axis=-1))
        assert (rms / wanted.std(axis=-1)).max() < tolerance


CASES = [
    ("llama-tiny-f32", PAIR, None, 32),
    ("llama-tiny-f32", THREE, (1.0, 3.0, 2.0), 3),
    ("llama-tiny-f16", PAIR, (3.0, 1.0), 5),
    ("llama-tiny-q8_0", MIXED, None, 32),
    ("llama-tiny-q8_0", PAIR, (2.0, 1.0), 1),
    ("qwen3moe-tiny-f32", THREE, None, 32),
    ("gptoss-tiny-f32", MIXED, (1.0, 3.0), 7),
    ("gptoss-tiny-f32", SIMULATED, None, 32),
    ("llama-tiny-f32", tuple(f"sim:{i}" for i in range(6)), None, 7),
]


@pytest.mark.parametrize(("name", "names", "split", "ubatch"), CASES)
def test_logits_are_those_of_llama_cpp(devices, name, names, split, ubatch):
    """Prefill, then after a reset a prompt and decoding steps, with the cache in parts."""
    model = load_model(ORACLE / f"{name}.gguf")
    with np.load(ORACLE / f"{name}.npz") as arrays:
        recorded = dict(arrays)
    with shared(model, devices(names), split, ubatch=ubatch) as session:
        found = session.feed(recorded["tokens_33"], all_logits=True)
        assert_close(found, recorded["logits_33"], RELATIVE.get(name.rsplit("-", 1)[1]))
        session.reset()
        rows = [session.feed(recorded["dec_prompt"])]
        rows += [session.feed([token]) for token in recorded["dec_tokens"]]
        assert_close(
            np.concatenate(rows), recorded["dec_logits"], RELATIVE.get(name.rsplit("-", 1)[1])
        )
        assert check_plan(session.last_plan).is_clean


@pytest.mark.parametrize(
    ("name", "names", "ubatch"),
    [
        ("llama-tiny-q8_0", THREE, 6),
        ("qwen3moe-tiny-f32", SIMULATED, 5),
        ("gptoss-tiny-f32", MIXED, 7),
    ],
)
def test_two_micro_batches_at_once(devices, name, names, ubatch):
    """Each on a stream of its own of all devices; the later one reads what the other has cached."""
    model = load_model(ORACLE / f"{name}.gguf")
    with np.load(ORACLE / f"{name}.npz") as arrays:
        tokens, wanted = arrays["tokens_33"], arrays["logits_33"]
    opened = devices(names)
    with shared(model, opened, ubatch=ubatch, pipelining="on") as session:
        for _ in range(2):
            session.reset()
            found = session.feed(tokens, all_logits=True)
            assert_close(found, wanted, RELATIVE.get(name.rsplit("-", 1)[1]))
        assert session.timing.joined == 2 * (-(-33 // ubatch) // 2)
        session.reset()
        session.feed(tokens[: 2 * ubatch])
        plan = session.last_plan
        assert check_plan(plan).is_clean
        streams = plan.streams
        for number, info in enumerate(plan.nodes):
            spec = streams.streams[streams.of_node[number]]
            own = [s.id for s in streams.streams if s.device == spec.device]
            has_lanes = plan.devices[spec.device].has_events
            assert own.index(spec.id) == (info.label.endswith("@1") if has_lanes else 0)


@pytest.mark.parametrize("name", [n for n in REFERENCES if n.endswith(("f32", "q4_k_m", "q3_k"))])
def test_all_architectures(tmp_path, devices, name):
    """Prefill and a decoding step; soft caps, biases, shared experts, fused and latent weights."""
    model = load_model(write_reference(tmp_path / "model.gguf", name))
    tokens = np.random.default_rng(0).integers(0, model.hparams.n_vocab, 9)
    options = SessionOptions(n_ctx=32, n_ubatch=8)
    with Session(model, devices(("cpu:0",)), options, settings=Settings()) as one:
        wanted = np.concatenate([one.feed(tokens, all_logits=True), one.feed([3])])
    with shared(model, devices(PAIR), n_ctx=32, ubatch=8) as session:
        found = np.concatenate([session.feed(tokens, all_logits=True), session.feed([3])])
        layouts = session.sharing.shards.layouts.values()
        assert any(isinstance(layout, Split) for layout in layouts)
    assert_close(found, wanted, None if name.endswith("f32") else PACKED)


@pytest.mark.parametrize("pipelining", ["off", "on"])
def test_groups_are_stages_of_a_pipeline(tmp_path, devices, pipelining):
    """Two stages of two devices: layers, caches and sums stay within a group."""
    model = load_model(tiny_gguf(tmp_path / "model.gguf", layers=4, vocab=32))
    tokens = np.arange(24) % 32
    with Session(model, devices(("cpu:0",)), SessionOptions(n_ctx=32)) as one:
        wanted = np.concatenate([one.feed(tokens, all_logits=True), one.feed([3])])
    four = ("sim:0", "sim:1", "sim:2", "sim:3")
    sizes = {"n_ctx": 32, "ubatch": 6, "group_size": 2, "pipelining": pipelining}
    with shared(model, devices(four), **sizes) as session:
        found = np.concatenate([session.feed(tokens, all_logits=True), session.feed([3])])
        homes = session.homes.devices
        assert session.timing.joined == (pipelining == "on")
    assert_close(found, wanted, None)
    assert {d for n, d in homes.items() if n.startswith(("blk.0", "blk.1"))} == {0, 1}
    assert {d for n, d in homes.items() if n.startswith(("blk.2", "blk.3", "output"))} == {2, 3}


@pytest.mark.parametrize("arch", ["llama", "gpt-oss"])
@pytest.mark.parametrize("how", [{}, {"copy_order": "barrier"}, {"has_events": False}])
def test_groups_that_read_each_other(tmp_path, devices, arch, how):
    """Two pipelined stages of two simulated devices that copy nothing between them."""
    model = load_model(tiny_gguf(tmp_path / "model.gguf", arch, layers=4, vocab=32))
    tokens = np.arange(24) % 32
    with Session(model, devices(("cpu:0",)), SessionOptions(n_ctx=32)) as one:
        wanted = np.concatenate([one.feed(tokens, all_logits=True), one.feed([3])])
    four = SimWorld([SimConfig(reads_peers=True, **how)] * 4).open_all()
    sizes = {"n_ctx": 32, "ubatch": 6, "group_size": 2, "pipelining": "on"}
    with shared(model, four, **sizes) as session:
        found = np.concatenate([session.feed(tokens, all_logits=True), session.feed([3])])
        plan = session.last_plan
    assert_close(found, wanted, None)
    assert check_plan(plan).is_clean
    assert plan_stats(plan).peer_reads


def test_a_session_goes_on_where_it_was(devices, tmp_path):
    """Generation in two calls is that of one device in one."""
    model = load_model(tiny_gguf(tmp_path / "model.gguf", layers=2, vocab=32))
    with Session(model, devices(("cpu:0",)), SessionOptions(n_ctx=32)) as one:
        wanted = list(one.generate([1, 2, 3], 12))
    with shared(model, devices(PAIR), n_ctx=32) as session:
        first = list(session.generate([1, 2, 3], 5))
        assert session.n_past == 7
        rest = list(session.generate([first[-1]], 7))
    assert first + rest == wanted


def test_all_devices_have_the_same_bits(devices):
    """Sums are made by everyone in one order: hidden states agree to the last bit."""
    model = load_model(ORACLE / "llama-tiny-f32.gguf")
    with shared(model, devices(PAIR)) as session:
        graph = session.graph(4, 0, 4)
        states = [
            t
            for n in graph.nodes
            if part_of(n.name)[0] == "blk.2.ffn_inp" and (t := n.output) is not None
        ]
        seen = replace(graph, outputs=tuple(states))
        inputs = {
            "tokens": np.arange(4, dtype=np.int32),
            "positions": np.arange(4, dtype=np.int32),
            "kv_rows": np.arange(4, dtype=np.int32),
            "bounds": np.array([[0, i + 1] for i in range(4)], np.int32),
            "out_rows": np.arange(4, dtype=np.int32),
        }
        a, b = session.scheduler.run(seen, inputs, session.constraints).values()
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


# --- what is where ------------------------------------------------------------------------


@pytest.mark.parametrize(("split", "share"), [(None, 0.5), ((3.0, 1.0), 0.75)])
def test_weights_and_caches_are_in_shares(devices, tmp_path, split, share):
    """Of what is split, to the byte; the embedding and copies of norms come on top."""
    model = load_model(wide_gguf(tmp_path / "model.gguf", e=256, ff=512))
    with shared(model, devices(PAIR), split) as session:
        session.feed([1, 2, 3])
        weights = session.scheduler.resident_nbytes("weight")
        states = session.scheduler.resident_nbytes("state")
    matrices = [n for n in model.spec.weights if n != "token_embd.weight" and "norm" not in n]
    total = sum(model.spec.weights[n].nbytes for n in matrices)
    norms = sum(w.nbytes for n, w in model.spec.weights.items() if "norm" in n)
    table = model.spec.weights["token_embd.weight"].nbytes
    assert weights == {
        "cpu:0": share * total + norms + table,
        "cpu:1": (1 - share) * total + norms,
    }
    cache = 4 * session.options.n_ctx * 256 * session.spec.cache_dtype.block_nbytes
    assert states == {"cpu:0": share * cache, "cpu:1": (1 - share) * cache}


def test_parts_of_rows_are_used_where_the_file_is_mapped(tmp_path):
    model = load_model(tiny_gguf(tmp_path / "model.gguf"))
    with shared(model, list(PAIR), n_ctx=16) as session:
        sharing = session.sharing
        q = sharing.array(model, "blk.0.attn_q.weight#1")
        whole = sharing.array(model, "blk.0.attn_q.weight")
        assert np.shares_memory(q, whole)
        assert sharing.is_mapped("blk.0.attn_q.weight#1")
        down = sharing.array(model, "blk.0.ffn_down.weight#1")
        assert not sharing.is_mapped("blk.0.ffn_down.weight#1")
        np.testing.assert_array_equal(down, sharing.array(model, "blk.0.ffn_down.weight")[:, 16:])


def test_what_is_split_and_what_is_whole():
    spec = spec_of(replace(LLAMA_8B, n_layer=2), BF16)
    who = find_participants(facts(2), None)
    shards = split_model(spec, who)
    assert shards.layout("blk.1.attn_k.weight") == Split(0, ((512, 512),))
    assert shards.layout("blk.1.ffn_down.weight") == Split(1, ((7168, 7168),))
    assert shards.layout("blk.0.k_cache") == Split(1, ((512, 512),))
    assert shards.layout("token_embd.weight") == Whole((0,))


def facts(count, cpus=0):
    """Return facts of GPUs and CPUs, as far as participants depend on them."""
    from ggsched_testing.plan_builder import fake_device

    gpus = [fake_device(f"gpu:{i}") for i in range(count)]
    return [*gpus, *(replace(fake_device(f"cpu:{i}"), kind="cpu") for i in range(cpus))]


@pytest.mark.parametrize(
    ("gpus", "cpus", "split", "devices", "host"),
    [
        (2, 0, None, (0, 1), 0),
        (2, 1, None, (0, 1, 2), 2),  # the CPU has the embedding
        (1, 1, None, (0, 1), 0),  # one accelerator: the CPU shares layers with it
        (0, 2, None, (0, 1), 0),
        (3, 0, (1.0, 0.0, 2.0), (0, 2), 0),
    ],
)
def test_who_shares(gpus, cpus, split, devices, host):
    who = find_participants(facts(gpus, cpus), split)
    assert (who.devices, who.host) == (devices, host)


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [(LLAMA_8B, "bf16"), (LLAMA_8B, "q4_k"), (GPT_OSS_20B, "mxfp4")],
    ids=["8B bf16", "8B q4_k", "gpt-oss mxfp4"],
)
def test_large_models_are_split_by_whole_blocks(shape, count, dtype):
    """No block is cut, whatever the count; no device has more than its share by one piece."""
    spec = spec_of(replace(shape, n_layer=2), dtype_by_name(dtype))
    spec = copied_output(spec) if spec.is_tied else spec
    shards = split_model(spec, find_participants(facts(count), None))
    for step in (1, 64):
        graph = BatchSize(step, 128, 1).graph(spec, 128)
        shard_graph(graph, shards)
    down = next(n for n in spec.weights if n.startswith("blk.0.ffn_down") and "weight" in n)
    (parts,) = shards.layout(down).segments
    assert max(parts) - min(p for p in parts if p) <= max(64, dtype_by_name(dtype).block)


# --- beside the CPU -----------------------------------------------------------------------

EXPERTS = OverrideRule(re.compile("ffn_.*_exps"), "cpu:0")
BESIDE = {
    "-ngl 1": Offload(n_gpu_layers=1),
    "-ngl 2": Offload(n_gpu_layers=2),
    "--n-cpu-moe 1": Offload(n_cpu_moe=1),
    "--n-cpu-moe": Offload(n_cpu_moe=99),
    "-ngl 3 --n-cpu-moe 2": Offload(n_gpu_layers=3, n_cpu_moe=2),
    "-ot": Offload(overrides=(EXPERTS, OverrideRule(re.compile("[kv]_cache|output"), "sim:1"))),
    "-ot without a bias": Offload(
        overrides=(
            OverrideRule(re.compile("ffn_gate_exps.weight"), "sim:0"),
            OverrideRule(re.compile("[kv]_cache|attn_q"), "sim:1"),
        )
    ),
    "-ts": Offload(tensor_split=(3.0, 1.0), n_cpu_moe=2),
}


NAMES = ("llama-tiny-f32", "qwen3moe-tiny-f32", "gptoss-tiny-f32")
TWO_AND_CPU = ("sim:0", "sim:1", "cpu:0")


@contextmanager
def beside(name, devices, offload, **options):
    """Open a session of which logits are those of llama.cpp and the last plan is clean."""
    with np.load(ORACLE / f"{name}.npz") as arrays:
        tokens, wanted = arrays["tokens_33"], arrays["logits_33"]
    sizes = SessionOptions(n_ctx=64, n_ubatch=7, split_mode="tensor", offload=offload, **options)
    model = load_model(ORACLE / f"{name}.gguf")
    with Session(model, devices, sizes, settings=Settings()) as session:
        assert_close(session.feed(tokens, all_logits=True), wanted, None)
        assert check_plan(session.last_plan).is_clean
        yield session


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("offload", BESIDE.values(), ids=BESIDE)
def test_layers_and_experts_on_the_cpu_beside_shared_layers(devices, name, offload):
    with beside(name, devices(TWO_AND_CPU), offload) as session:
        homes = session.homes
    reasons = {homes.reasons[tensor] for tensor, at in homes.devices.items() if at == 2}
    if offload.n_gpu_layers is not None:
        assert any(reason.endswith("is on the host (-ngl)") for reason in reasons)
    if offload.n_cpu_moe and name != "llama-tiny-f32":
        assert "experts stay on the host (--n-cpu-moe)" in reasons


def test_groups_of_devices_beside_a_cpu(devices):
    """Two groups make a pipeline of the layers that are not on the CPU."""
    offload, names = (
        Offload(n_gpu_layers=3, n_cpu_moe=3),
        (*(f"sim:{i}" for i in range(4)), "cpu:0"),
    )
    more = {"group_size": 2, "pipelining": "on"}
    with beside("qwen3moe-tiny-f32", devices(names), offload, **more) as session:
        homes = session.homes.devices
    used = {at for tensor, at in homes.items() if tensor.startswith("blk.")}
    assert used == set(range(len(names)))


def test_of_experts_on_the_cpu_only_rows_of_a_token_move(devices):
    """A step hands on a row, which experts and their weights, and takes the sum back."""
    offload = Offload(n_cpu_moe=99)
    with beside("qwen3moe-tiny-f32", devices(TWO_AND_CPU), offload) as session:
        session.feed([1])
        plan, hp = session.last_plan, session.spec.hparams
    values = plan.splits.values
    leaving = [
        values[t.dst].end - values[t.dst].start
        for t in plan.splits.transfers
        if values[t.src].device == 2
    ]
    assert set(leaving) == {4 * hp.n_embd}
    assert len(leaving) <= 2 * (2 + hp.n_layer)


@settings(max_examples=max(5, settings().max_examples // 10))
@given(st.data())
def test_any_tensor_on_any_device(devices, data):
    """Whatever ``-ot`` names lives whole where it says, beside layers in shares."""
    name, names = data.draw(st.sampled_from(NAMES)), (*TWO_AND_CPU, "sim:2")
    spec = load_model(ORACLE / f"{name}.gguf").spec
    chosen = st.sets(st.sampled_from([*spec.weights, *spec.hparams.state_names]), max_size=6)
    overrides = tuple(
        OverrideRule(re.compile(f"^{re.escape(tensor)}$"), data.draw(st.sampled_from(names)))
        for tensor in sorted(data.draw(chosen))
    )
    n_cpu_moe = data.draw(st.integers(0, 3))
    offload = Offload(overrides=overrides, tensor_split=(1.0, 1.0), n_cpu_moe=n_cpu_moe)
    with beside(name, devices(names), offload):
        pass


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"offload": Offload(n_gpu_layers=1)}, "-ngl"),
        ({"offload": Offload(split_by="cost")}, "--split-by"),
        ({"offload": Offload(overrides=(OverrideRule(re.compile("x"), "cpu:0"),))}, "-ot"),
        ({"placement": "cost"}, "--placement"),
    ],
)
def test_options_that_say_where_layers_live_are_refused(tmp_path, options, what):
    model = load_model(tiny_gguf(tmp_path / "model.gguf"))
    with pytest.raises(UsageError, match=re.escape(what)):
        Session(model, ["sim:0", "sim:1"], SessionOptions(split_mode="tensor", **options))


@pytest.mark.parametrize(
    ("names", "split", "what"),
    [
        (["sim:0"], None, "over 1 device"),
        (["sim:0", "sim:1"], (1.0, 0.0), "over 1 device"),
        (["sim:0", "sim:1"], (1.0, 1.0, 1.0), "one share of 0 or more for each device"),
    ],
)
def test_shares_that_do_not_fit_are_refused(tmp_path, names, split, what):
    model = load_model(tiny_gguf(tmp_path / "model.gguf"))
    options = SessionOptions(split_mode="tensor", offload=Offload(tensor_split=split))
    with pytest.raises(UsageError, match=what):
        Session(model, names, options)


def test_a_model_that_cannot_be_divided_is_refused():
    """One head of keys, and a network of one block."""
    shape = replace(LLAMA_8B, n_layer=1, n_head_kv=1, n_ff=256, n_vocab=1)
    spec = spec_of(shape, dtype_by_name("q4_k"))
    with pytest.raises(UsageError, match="nothing of this model can be shared"):
        split_model(spec, find_participants(facts(2), None))


def test_unknown_modes_are_refused():
    with pytest.raises(UsageError, match="-sm row"):
        SessionOptions(split_mode="row").check()
    with pytest.raises(UsageError, match="--tensor-group 2 with -sm layer"):
        SessionOptions(group_size=2).check()


@pytest.mark.parametrize(("size", "crosses"), [(2, False), (4, True)])
def test_a_group_that_crosses_machines_is_warned_of(size, crosses, caplog):
    names = ("ray://a/gpu:0", "ray://a/gpu:1", "ray://b/gpu:0", "ray://b/gpu:1")
    devices = [replace(f, name=name) for f, name in zip(facts(4), names, strict=True)]
    spec = spec_of(replace(LLAMA_8B, n_layer=2), BF16)
    options = SessionOptions(split_mode="tensor", group_size=size)
    Sharing.of(spec, devices, options)
    assert ("devices of several machines share layers" in caplog.text) == crosses
