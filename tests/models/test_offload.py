"""Which device each weight and cache goes to, by llama.cpp's rules."""

import re
from dataclasses import replace

import pytest

from ggsched.errors import UsageError
from ggsched.ir.dtype import F32
from ggsched.topology.model import Topology
from ggsched_llm.load import load_model
from ggsched_llm.offload import Offload, OverrideRule, check_caches, find_homes
from ggsched_llm.spec import CACHE_DTYPES, ModelSpec, WeightSpec
from ggsched_llm.token_inputs import NEXT_TOKEN
from ggsched_testing.plan_builder import fake_device
from tests.models.helpers import ORACLE, tiny_gguf

LAYERS = 3


def machine(*names, memory=None):
    """Return a topology; what is not called cpu is an accelerator."""
    sizes = memory or {}
    return Topology(
        tuple(
            fake_device(
                name,
                kind="cpu" if name.startswith("cpu") else "gpu",
                memory_nbytes=sizes.get(name, 1 << 30),
            )
            for name in names
        )
    )


GPU_CPU = machine("gpu:0", "cpu:0")
TWO_GPUS = machine("gpu:0", "gpu:1", "cpu:0")


@pytest.fixture(scope="module")
def llama():
    return load_model(ORACLE / "llama-tiny-f32.gguf").spec


@pytest.fixture(scope="module")
def moe():
    return load_model(ORACLE / "qwen3moe-tiny-f32.gguf").spec


def rule(pattern, device):
    return OverrideRule(re.compile(pattern), device)


def where(homes, pattern):
    """The devices of all names that match, as a set."""
    found = {d for n, d in homes.devices.items() if re.search(pattern, n)}
    assert found, pattern
    return found


def layers(homes):
    """The device of each block and of the output layer."""
    blocks = [where(homes, rf"^blk\.{i}\.") for i in range(LAYERS)]
    everything = [*blocks, where(homes, r"^output")]
    assert all(len(found) == 1 for found in everything)
    return [found.pop() for found in everything]


class TestLayers:
    @pytest.mark.parametrize(
        ("ngl", "wanted"),
        [
            (0, [1, 1, 1, 1]),
            (1, [1, 1, 1, 0]),
            (2, [1, 1, 0, 0]),
            (3, [1, 0, 0, 0]),
            (4, [0, 0, 0, 0]),
            (5, [0, 0, 0, 0]),
            (999, [0, 0, 0, 0]),
            (None, [0, 0, 0, 0]),
        ],
    )
    def test_counted_from_the_output(self, llama, ngl, wanted):
        homes = find_homes(llama, GPU_CPU, Offload(n_gpu_layers=ngl))
        assert layers(homes) == wanted
        assert where(homes, "^token_embd") == {1}

    def test_every_weight_and_cache_has_a_home_with_a_reason(self, llama):
        homes = find_homes(llama, GPU_CPU, Offload(n_gpu_layers=2))
        names = {*llama.weights, *llama.hparams.state_names}
        assert set(homes.devices) == set(homes.reasons) == names
        assert homes.reasons["blk.0.attn_q.weight"] == "block 0 is on the host (-ngl)"
        assert homes.reasons["blk.2.k_cache"] == "block 2 is offloaded (-ngl)"
        token = {NEXT_TOKEN: homes.devices["output.weight"]}
        assert homes.constraints().homes == {**homes.devices, **token}

    @pytest.mark.parametrize("asked", ["f16", "f32"])
    def test_a_cache_that_its_device_cannot_write_stays_on_the_host(self, llama, asked):
        spec = replace(llama, cache_dtype=CACHE_DTYPES[asked])
        gpu, cpu = GPU_CPU.devices
        gpu = replace(gpu, ops=gpu.ops - {"set_rows:f16"} | {"set_rows:f32"})
        cpu = replace(cpu, ops=cpu.ops | {"set_rows:f16", "set_rows:f32"})
        homes = find_homes(spec, Topology((gpu, cpu)), Offload())
        assert where(homes, "_cache$") == {1 if asked == "f16" else 0}
        assert where(homes, "attn_q") == {0}
        is_said = "gpu:0 lacks set_rows:f16 (-ctk f32)" in homes.reasons.values()
        assert is_said == (asked == "f16")
        remark = check_caches(homes, spec, (gpu, cpu))
        said = "KV caches stay on cpu:0: gpu:0 lacks set_rows:f16 (-ctk f32)"
        assert remark == (said if asked == "f16" else "")
        nobody = replace(cpu, ops=cpu.ops - {"set_rows:f16"})
        homes = find_homes(spec, Topology((gpu, nobody)), Offload())
        assert where(homes, "_cache$") == {0}, "the planner says what is missing"
        if asked == "f16":
            with pytest.raises(UsageError, match=r"gpu:0 lacks set_rows:f16 \(-ctk f32\)"):
                check_caches(homes, spec, (gpu, nobody))

    def test_an_embedding_that_is_the_output_matrix_too_goes_with_the_output(self, tmp_path):
        path = tiny_gguf(tmp_path / "tied.gguf", layers=LAYERS, drop=["output.weight"])
        spec = load_model(path).spec
        for ngl, device in ((0, 1), (1, 0), (None, 0)):
            homes = find_homes(spec, GPU_CPU, Offload(n_gpu_layers=ngl))
            assert where(homes, "^token_embd") == {device}

    @pytest.mark.parametrize(
        ("names", "host"),
        [
            (("cpu:0",), 0),
            (("cpu:0", "cpu:1"), 1),
            (("cpu:0", "gpu:0", "cpu:1"), 2),
            (("cpu:0", "gpu:0"), 0),
            (("gpu:0", "gpu:1"), 1),
        ],
    )
    def test_the_host_is_the_last_cpu_or_the_last_device(self, llama, names, host):
        homes = find_homes(llama, machine(*names), Offload(n_gpu_layers=0))
        assert set(homes.devices.values()) == {host}

    def test_without_accelerators_nothing_is_offloaded(self, llama):
        homes = find_homes(llama, machine("cpu:0", "cpu:1"), Offload(n_gpu_layers=2))
        assert set(homes.devices.values()) == {1}


class TestShares:
    @pytest.mark.parametrize(
        ("split", "wanted"),
        [
            (None, [0, 0, 1, 1]),
            ((1.0, 1.0), [0, 0, 1, 1]),
            ((3.0, 1.0), [0, 0, 0, 1]),
            ((1.0, 3.0), [0, 1, 1, 1]),
            ((1.0,), [0, 0, 0, 0]),
            ((0.0, 1.0), [1, 1, 1, 1]),
            ((1.0, 0.0), [0, 0, 0, 0]),
            ((0.3, 0.1), [0, 0, 0, 1]),
        ],
    )
    def test_blocks_in_order_of_the_devices(self, llama, split, wanted):
        assert layers(find_homes(llama, TWO_GPUS, Offload(tensor_split=split))) == wanted

    def test_of_what_is_offloaded(self, llama):
        found = find_homes(llama, TWO_GPUS, Offload(n_gpu_layers=2, tensor_split=(1.0, 1.0)))
        assert layers(found) == [2, 2, 0, 1]

    def test_by_memory_if_not_given(self, llama):
        topology = machine("gpu:0", "gpu:1", "cpu:0", memory={"gpu:0": 1 << 20, "gpu:1": 3 << 20})
        assert layers(find_homes(llama, topology, Offload())) == [0, 1, 1, 1]

    @pytest.mark.parametrize(
        "split",
        [(1.0, 1.0, 1.0), (0.0,), (0.0, 0.0), (), (1.0, -1.0), (float("nan"),), (float("inf"),)],
    )
    def test_refused(self, llama, split):
        with pytest.raises(UsageError, match=r"-ts .*there are: gpu:0, gpu:1"):
            find_homes(llama, TWO_GPUS, Offload(tensor_split=split))

    def test_refused_without_accelerators(self, llama):
        with pytest.raises(UsageError, match="there are: none"):
            find_homes(llama, machine("cpu:0"), Offload(tensor_split=(1.0,)))


class TestExperts:
    @pytest.mark.parametrize("n", [0, 1, 2, 3, 7])
    def test_of_the_first_blocks_stay_on_the_host(self, moe, n):
        homes = find_homes(moe, GPU_CPU, Offload(n_cpu_moe=n))
        for i in range(LAYERS):
            assert where(homes, rf"^blk\.{i}\.ffn_(up|down|gate)_exps\.") == {int(i < n)}
            assert where(homes, rf"^blk\.{i}\.(attn|ffn_gate_inp|ffn_norm|k_cache)") == {0}

    def test_biases_go_with_them(self):
        spec = load_model(ORACLE / "gptoss-tiny-f32.gguf").spec
        homes = find_homes(spec, GPU_CPU, Offload(n_cpu_moe=1))
        assert where(homes, r"^blk\.0\.ffn_\w+_exps\.bias") == {1}
        assert where(homes, r"^blk\.1\.ffn_\w+_exps\.bias") == {0}
        assert where(homes, r"^blk\.0\.ffn_gate_inp") == {0}

    def test_reasons(self, moe):
        homes = find_homes(moe, GPU_CPU, Offload(n_gpu_layers=2, n_cpu_moe=3))
        name = "blk.{}.ffn_up_exps.weight"
        assert homes.reasons[name.format(0)] == "block 0 is on the host (-ngl)"
        assert homes.reasons[name.format(2)] == "experts stay on the host (--n-cpu-moe)"

    def test_a_dense_model_has_none(self, llama):
        plain, asked = (find_homes(llama, GPU_CPU, Offload(n_cpu_moe=n)) for n in (0, 3))
        assert plain.devices == asked.devices


class TestOverrides:
    def test_win_over_everything(self, moe):
        offload = Offload(
            n_gpu_layers=0,
            n_cpu_moe=3,
            overrides=(rule(r"blk\.1\.ffn_up_exps", "gpu:0"), rule("token_embd", "gpu:0")),
        )
        homes = find_homes(moe, GPU_CPU, offload)
        on_gpu = {name for name, device in homes.devices.items() if device == 0}
        assert on_gpu == {"blk.1.ffn_up_exps.weight", "token_embd.weight"}
        assert homes.reasons["token_embd.weight"] == "-ot token_embd"

    def test_the_first_that_matches_counts(self, llama):
        offload = Offload(overrides=(rule(r"blk\.0\.", "cpu:0"), rule(r"attn_q", "gpu:1")))
        homes = find_homes(llama, TWO_GPUS, offload)
        assert homes.devices["blk.0.attn_q.weight"] == 2
        assert homes.devices["blk.1.attn_q.weight"] == 1
        assert homes.unused == ()

    def test_caches_too(self, llama):
        homes = find_homes(llama, GPU_CPU, Offload(overrides=(rule(r"1\.k_cache$", "cpu:0"),)))
        assert [n for n, d in homes.devices.items() if d == 1 and "cache" in n] == ["blk.1.k_cache"]

    def test_searched_anywhere_in_the_name(self, llama):
        homes = find_homes(llama, GPU_CPU, Offload(overrides=(rule("ffn", "cpu:0"),)))
        assert where(homes, "ffn_") == {1}
        assert where(homes, "attn_") == {0}

    @pytest.mark.parametrize("name", ["cpu:0", "CPU", "cpu", "CPU:0"])
    def test_names_of_devices(self, llama, name):
        homes = find_homes(llama, GPU_CPU, Offload(overrides=(rule("ffn_up", name),)))
        assert where(homes, "ffn_up") == {1}

    def test_a_backend_stands_for_its_first_device(self, llama):
        homes = find_homes(llama, TWO_GPUS, Offload(overrides=(rule(".", "gpu"),)))
        assert set(homes.devices.values()) == {0}

    @pytest.mark.parametrize("name", ["gpu:1", "cuda:0", "", "cpu:"])
    def test_unknown_devices(self, llama, name):
        with pytest.raises(UsageError, match=f"names the device '{name}'.*gpu:0, cpu:0"):
            find_homes(llama, GPU_CPU, Offload(overrides=(rule("x", name),)))

    def test_that_match_nothing_are_reported(self, llama):
        offload = Offload(overrides=(rule("ffn_up", "cpu:0"), rule("nothing", "cpu:0")))
        assert find_homes(llama, GPU_CPU, offload).unused == ("nothing",)

    def test_that_only_come_too_late_are_not_unused(self, llama):
        offload = Offload(overrides=(rule("ffn", "cpu:0"), rule("ffn_up", "gpu:0")))
        homes = find_homes(llama, GPU_CPU, offload)
        assert homes.unused == ()
        assert where(homes, "ffn_up") == {1}


@pytest.mark.parametrize(
    "offload", [Offload(n_gpu_layers=-1), Offload(n_cpu_moe=-1), Offload(n_gpu_layers=-999)]
)
def test_negative_counts(llama, offload):
    with pytest.raises(UsageError, match=r"not negative.*4 layers to offload"):
        find_homes(llama, GPU_CPU, offload)


def test_rope_tables_are_read_by_all_blocks(llama):
    spec = ModelSpec(llama.hparams, {**llama.weights, "rope_freqs.weight": WeightSpec((4,), F32)})
    homes = find_homes(spec, GPU_CPU, Offload())
    assert homes.devices["rope_freqs.weight"] == 1
