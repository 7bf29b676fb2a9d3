"""Own kernels of the plug-in cuda whose lanes work together, compiled for the host and run.

Each lane is a fiber that goes on until it has to meet others, so exchanges in a warp, barriers of a
group and the local memory of a cluster mean what they mean on a GPU. What is not shown is the
machine itself: its words for clusters are replaced, and no two lanes run at the same time.
"""

import ctypes
import functools
import hashlib
import platform
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ggsched.backend.packed import quantize
from ggsched.backend.program import Group
from ggsched.ir.builder import GraphBuilder
from ggsched.ir.dtype import F16, F32, I32, dtype_by_name
from ggsched.ir.tensor import Role
from ggsched_cuda_kernels.flash_attention import SPLIT_ROWS
from ggsched_kernels import CODE, FAULT, Constant, warp_profile
from ggsched_kernels.calls import ArgPlaceholder, CodeOf
from ggsched_testing.allowance import rounding_allowances
from ggsched_testing.eager import bound_nodes
from ggsched_testing.oracle.interpreter import run_oracle
from tests.kernels.nvrtc import NEEDS_BINDINGS, OPTIMISES
from tests.kernels.test_cuda_on_host import CONVERSIONS

NEEDS = [
    NEEDS_BINDINGS,
    pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="uses instructions of x86-64"),
]
pytestmark = NEEDS

H200 = warp_profile(132, 232448, True)
HEADER, MACHINE_TEXT = (
    "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in names)
    for names in (("f16.h", "fibers.h"), ("f16.h", "fibers.h", "fibers.cpp", "gates.cpp"))
)
MACHINE = re.compile(r"#if SPLITS > 1\n.*?#endif\n", re.DOTALL)
WORDS = {
    "LOAD16_ONCE(p)": "LOAD16(p)",
    "COPY16(to, from)": "memcpy((to), (from), 16)",
    "COPIES_CLOSE()": "",
    "COPIES_AWAIT(newer)": "",
    "LOCAL_BYTES(name)": "u8 *name = local_()",
    "STAGES_OF(name)": "u8 *name = stages_()",
    "GATE_OPEN(gate, lanes)": "host_gate_open_((gate), (lanes))",
    "GATES_READY()": "",
    "GATE_ARRIVE(gate)": "host_gate_arrive_((gate), 0)",
    "GATE_ANNOUNCE(gate, nbytes)": "host_gate_arrive_((gate), (nbytes))",
    "GATE_AWAIT(gate, phase)": "host_gate_await_((gate), (phase))",
    "COPY_SPAN(to, from, nbytes, gate)": "host_copy_span_((to), (from), (nbytes), (gate))",
    "MEET(lanes)": "meet_some_(lanes)",
    "MULTIPLY_ADD(sum, a, b, scratch)": "host_multiply_add_((sum), (a), (b))",
    "MULTIPLY_HALVES(sum, a, b)": "host_multiply_halves_((sum), (a), (b), HALVES_ARE_BF16)",
    "MULTIPLY_GROUP(d, a, b, adds)": "host_multiply_group_((d), (a), (b), (adds), HALVES_ARE_BF16)",
    "MULTIPLY_TURNED(d, a, b, more)": "host_multiply_turned_((d), (a), (b), more, HALVES_ARE_BF16)",
    "LOCAL_ADDRESS(p)": "((u32)(u64)(p))",
    "PRODUCTS_SEE()": "",
    "PRODUCTS_OPEN()": "",
    "PRODUCTS_CLOSE()": "",
    "PRODUCTS_AWAIT(newer)": "",
    "HELD(x)": "",
    "MULTIPLY_TF32(sum, a, b)": "host_multiply_tf32_((sum), (a), (b))",
    "TF32_OF(x)": "host_tf32_of_(x)",
    "LOAD_MATRICES(to, p)": "host_load_matrices_((to), (p), false)",
    "LOAD_TURNED(to, p)": "host_load_matrices_((to), (p), true)",
    "PAIR_OF(low, high)": "host_pair_of_((low), (high), HALVES_ARE_BF16)",
    "EXP2(x)": "exp2f(x)",
    "SIGNAL(word)": "(*(word) += 1)",
    "POLL(seen, word)": "((seen) = *(word))",
    "ARRIVE(old, word)": "((old) = (*(word))++)",
    "NANOSECONDS(t)": "((t) += 1000000)",
    "MULTIPLY_PAIRS(a, b)": "host_multiply_pairs_((a), (b))",
    "SUB_HALVES(a, b)": "host_sub_halves_((a), (b))",
    "PERMUTED_OR_SIGN(a, b, selector)": "host_permuted_or_sign_((a), (b), (selector))",
}
"""What words of the machine are here."""


FLAGS = ("-std=c++17", "-O1" if OPTIMISES else "-O0", "-mf16c", "-shared", "-fPIC", "-w")


def library_of(folder, name, text, defines):
    """Return the path of a text's library; what runs its lanes is compiled once for all."""
    machine = compiled(folder, "machine", MACHINE_TEXT, [])
    given = "".join(f"#define {k} {v}\n" for k, v in defines)
    return compiled(folder, name, given + HEADER + text, ["-nostdlib", str(machine)])


def compiled(folder, name, text, libraries):
    """Compile a text unless the folder has it; processes may share the folder."""
    content = "\0".join([compiler_version(), *FLAGS, *libraries, text])
    made = folder / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:32]}.so"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=folder) as own:
            file, to = Path(own, f"{name}.cpp"), Path(own, made.name)
            file.write_text(text, encoding="utf-8")
            command = ["g++", *FLAGS, "-o", str(to), str(file), *libraries]
            done = subprocess.run(command, check=False, timeout=120, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()
            to.replace(made)
    return made


@functools.cache
def compiler_version():
    return subprocess.run(["g++", "--version"], check=True, capture_output=True, text=True).stdout


class Memory:
    """A buffer in host memory."""

    def __init__(self, nbytes):
        self.bytes = np.full(nbytes + 64, 0xFF, np.uint8)
        self.start = -self.bytes.ctypes.data % 16
        self.nbytes = nbytes

    @property
    def view(self):
        return self.bytes[self.start : self.start + self.nbytes]


class Runner:
    """Compiles sources and runs calls of them."""

    def __init__(self, folder):
        self.folder, self.libraries, self.fault = folder, {}, np.zeros(4, np.int32)
        self.seed, self.memory = 0, {}

    def run(self, call, codes=None):
        library = self._library(call)
        keep, values = [], []
        for arg in call.args:
            if isinstance(arg, bytes):
                values.append(np.frombuffer(arg, np.uint8))
            elif arg is CODE or isinstance(arg, CodeOf):
                label = call.label if arg is CODE else arg.label
                values.append(np.array([(codes or {}).get(label, 1)], np.int32))
            else:
                values.append(np.array([self._address(arg, keep)], np.uint64))
        pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))
        count = call.cluster if call.cluster > 1 else 1
        assert call.cluster in (1, call.groups[0])
        library.begin_run(self.seed)
        for arg in call.args:
            if isinstance(arg, Memory):
                library.may_be_copied(ctypes.c_void_p(arg.view.ctypes.data), arg.nbytes)
        x, y, z = call.groups
        library.set_grid(x, y, z)
        shared = call.shared_nbytes
        if call.cluster > 1:
            blocks = [(0, j, k) for k in range(z) for j in range(y)]
        else:
            blocks = [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        for i, j, k in blocks:
            done = library.run(pointers, i, count, j, k, call.lanes, shared)
            assert done, library.complaint().decode()

    def _address(self, arg, keep):
        if arg is FAULT:
            return self.fault.ctypes.data
        if isinstance(arg, ArgPlaceholder):
            return self.memory[arg].view.ctypes.data
        if isinstance(arg, Constant):
            keep.append(np.frombuffer(arg.content, np.uint8).copy())
            return keep[-1].ctypes.data
        return arg.view.ctypes.data

    def _library(self, call):
        key = call.source, call.kernel, call.defines
        if key in self.libraries:
            return self.libraries[key]
        path = library_of(self.folder, call.kernel, host_text(call), call.defines)
        library = ctypes.CDLL(str(path))
        library.complaint.restype = ctypes.c_char_p
        return self.libraries.setdefault(key, library)


def host_text(call):
    """Return a source with what runs one of its kernels for a list of arguments."""
    from ggsched_cuda_kernels.sources import text_of

    text = text_of(call.source)
    for cuda, host in CONVERSIONS.items():
        text = text.replace(cuda, host)
    text = MACHINE.sub("", text)
    for word, host in WORDS.items():
        text = re.sub(rf"#define {re.escape(word)}.*", f"#define {word} {host}", text)
    text = text.replace("#define LOCAL __shared__", "#define LOCAL static")
    text = text.replace("(int)((axis) == 0 ? blockIdx.x", "(int)((axis) == 0 ? first_ + blockIdx.x")
    tail = f"""
#ifdef SET
static_assert(SET > 0, "lanes go on for ever");
#endif
static void **given;
template <size_t...> struct Indices {{}};
template <class... A, size_t... I>
static void call_(void (*kernel)(A...), Indices<I...>) {{ kernel(*(A *)given[I]...); }}
template <class... A>
static void call_(void (*kernel)(A...)) {{
  call_(kernel, Indices<__integer_pack(sizeof...(A))...>());
}}
static void lane_of_it() {{ call_({call.kernel}); }}
template <class... A>
static size_t *sizes_(void (*)(A...)) {{
  static size_t all[] = {{sizeof(A)..., 0}};
  return all;
}}
template <class... A>
static int parameters_(void (*)(A...)) {{ return sizeof...(A); }}
extern "C" size_t *sizes() {{ return sizes_({call.kernel}); }}
extern "C" int parameters() {{ return parameters_({call.kernel}); }}
extern "C" void set_grid(int x, int y, int z) {{ grid_ = {{x, y, z}}; }}
extern "C" int run(void **arguments, int first, int count, int y, int z, int lanes, int local) {{
  given = arguments, first_ = first;
  return run_gated_(count, y, z, lanes, local, lane_of_it);
}}
"""
    return f"static int first_;\nstatic Place grid_;\n{text}\n{tail}"


def laid_out(graph, values):
    """Return nodes bound to host memory that holds the values, and the memory by storage."""
    memory = {t.id: Memory(t.nbytes) for t in graph.tensors if not t.is_view}
    for t in graph.tensors:
        if not t.is_view and t.role is not Role.TEMP:
            memory[t.id].view[:] = np.ascontiguousarray(values[t.name]).reshape(-1).view(np.uint8)
    return bound_nodes(graph, memory), memory


# --- attention --------------------------------------------------------------------------------


def attention(tokens, groups, share, n, width, dtype, masked, sinks, *, across=0, **more):
    """Return the graph of a layer's attention, over the rows of a cache from the second on."""
    g, heads = GraphBuilder("attention"), groups * share
    q = g.input("q", (tokens, heads, width))
    kept = [
        g.reshape(g.rows(g.input(name, (n + 2, groups * m), dtype), 1, n + 1), n, groups, m)
        for name, m in (("keys", width), ("values", across or width))
    ]
    mask = g.input("mask", (tokens, n)) if masked == "scattered" else None
    bounds = g.input("bounds", (tokens, 2), I32) if masked and mask is None else None
    made = g.attention(
        q, *kept, mask=mask, bounds=bounds, sinks=g.input("sinks", (heads,)) if sinks else None,
        scale=width**-0.5, **more,
    )  # fmt: skip
    return g.build(made)


def drawn(t, rng):
    """Return random numbers of a type, in its host form."""
    plain = (3 * rng.standard_normal(t.shape)).astype(np.float32)
    if t.dtype.is_quantized:
        return quantize(plain, t.dtype)
    if t.dtype.name == "bf16":
        return (plain.view(np.uint32) >> 16).astype(np.uint16)
    return plain.astype(np.float16) if t.dtype is F16 else plain


def mask_of(kind, tokens, n, rng):
    """Return a mask of scattered positions, some of them hidden."""
    seen = rng.random((tokens, n)) < 0.3
    seen[:, n // 3] = True
    return np.where(seen, rng.uniform(-1, 1, (tokens, n)), -np.inf).astype(np.float32)


def bounds_of(kind, tokens, n):
    """Return what tokens see: the positions up to their own, a window, or all."""
    end = np.minimum(n, n // 2 + 1 + np.arange(tokens))
    first = {"prefix": 0 * end, "window": end - 3, "all": 0 * end}[kind]
    return np.stack([first, end if kind != "all" else 0 * end + n + 5], -1).astype(np.int32)


def seen_by(graph, kind, tokens, n, rng):
    """Return values of mask and bounds, as far as a graph has them."""
    values = {}
    if "mask" in graph:
        values["mask"] = mask_of(kind, tokens, n, rng)
    if "bounds" in graph:
        values["bounds"] = bounds_of(kind, tokens, n)
    return values


CASES = [
    # tokens, key heads, query heads of each, positions, width, type, mask, sinks, multiprocessors
    (1, 2, 4, 256, 64, "f16", "prefix", False, 132),
    (1, 1, 8, 256, 128, "f16", "prefix", True, 132),
    (2, 1, 8, 70, 128, "f32", "scattered", False, 132),
    (5, 2, 1, 33, 80, "f16", "window", True, 132),
    (1, 1, 16, 7, 64, "f16", None, False, 132),
    (1, 1, 3, 1, 8, "f32", None, True, 132),
    (3, 1, 12, 100, 24, "bf16", "scattered", True, 12),
    (1, 1, 4, 600, 256, "f16", "window", False, 4),
    (1, 1, 1, 1000, 64, "f16", "scattered", False, 2),
    (2, 1, 2, 130, 256, "f32", "prefix", False, 8),
    (2, 1, 4, 100, 64, "f16", "all", True, 132),
    (3, 1, 4, 900, 64, "f16", "window", True, 16),
]


FAST = 4


@pytest.mark.parametrize(
    "case",
    [*CASES[:FAST], *(pytest.param(c, marks=pytest.mark.slow) for c in CASES[FAST:])],
    ids=str,
)
def test_attention(runner, case):
    from ggsched_cuda_kernels.kernel_selection import lower

    tokens, groups, share, n, width, kind, mask, sinks, units = case
    dtype, rng = dtype_by_name(kind), np.random.default_rng(0)
    graph = attention(tokens, groups, share, n, width, dtype, mask, sinks)
    values = {t.name: drawn(t, rng) for t in graph.roots(Role.INPUT)}
    values |= seen_by(graph, mask, tokens, n, rng)
    nodes, memory = laid_out(graph, values)
    (call,), _ = lower(nodes, replace(H200, num_sms=units))
    assert call.kernel == "attention"
    runner.run(call)
    ((tid, wanted),) = run_oracle(graph, values).items()
    got = memory[tid].view.view(np.float32).reshape(wanted.shape)
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    assert np.isnan(memory[tid].bytes[-32:].view(np.float32)).all(), "what lies behind is as it was"


FLASH = [
    # tokens, key heads, query heads of each, positions, widths, type, mask, sinks, cap, activations
    (9, 1, 4, 150, (64, 64), "bf16", "prefix", False, 0.0, "auto"),
    (20, 2, 7, 100, (64, 32), "f16", "window", True, 0.0, "auto"),
    (9, 1, 1, 70, (16, 16), "f16", "scattered", True, 0.0, "f32"),
    (70, 1, 2, 130, (32, 48), "bf16", "prefix", True, 0.0, "f32"),
    (21, 2, 2, 70, (64, 32), "q8_0", "window", True, 0.0, "auto"),
    (9, 1, 1, 46 * 256, (16, 80), "f16", "scattered", True, 0.0, "auto"),  # 46 shares
    (9, 1, 2, 65, (80, 80), "f16", "all", False, 5.0, "auto"),
    (1, 1, 4, 1000, (128, 128), "q8_0", "prefix", False, 0.0, "f32"),
    (9, 1, 2, 1000, (96, 96), "f16", "prefix", True, 0.0, "auto"),  # shares of the rows
    (9, 1, 2, 33, (192, 128), "bf16", "prefix", False, 0.0, "auto"),
    (9, 1, 3, 40, (256, 256), "f16", None, True, 0.0, "f32"),
    (130, 1, 1, 130, (64, 64), "f16", "prefix", False, 0.0, "auto"),
]
FAST_FLASH = 6


FLASH_GROUPS = [
    (50, 1, 4, 150, (64, 64), "bf16", "prefix", True, 0.0, "auto"),
    (33, 1, 4, 200, (128, 64), "f16", "window", False, 0.0, "auto"),
    (33, 1, 4, 100, (64, 128), "q8_0", "scattered", False, 5.0, "auto"),
]


@pytest.mark.parametrize(
    "case",
    [FLASH_GROUPS[0], *(pytest.param(c, marks=pytest.mark.slow) for c in FLASH_GROUPS[1:])],
    ids=str,
)
def test_flash_attention_by_groups_of_warps(runner, case, monkeypatch):
    """Where rows of queries are many, which here are few for few multiprocessors."""
    profile = replace(H200, group_mma=True, num_sms=1)
    monkeypatch.setattr(f"{__name__}.H200", profile)
    calls = run_flash(runner, case)
    assert ("GROUP_MMA", "1") in calls[0].defines


@pytest.mark.parametrize(
    "case",
    [*FLASH[:FAST_FLASH], *(pytest.param(c, marks=pytest.mark.slow) for c in FLASH[FAST_FLASH:])],
    ids=str,
)
def test_flash_attention(runner, case):
    run_flash(runner, case)


def run_flash(runner, case):
    """Compare attention on tensor cores with the reference; return the calls."""
    from ggsched_cuda_kernels.kernel_selection import lower

    tokens, groups, share, n, (width, across), kind, mask, sinks, cap, activations = case
    dtype, rng = dtype_by_name(kind), np.random.default_rng(0)
    more = {"across": across, "soft_cap": cap}
    graph = attention(tokens, groups, share, n, width, dtype, mask, sinks, **more)
    values = {t.name: drawn(t, rng) for t in graph.roots(Role.INPUT)}
    values |= seen_by(graph, mask, tokens, n, rng)
    nodes, memory = laid_out(graph, values)
    calls, needed = lower(nodes, replace(H200, activations=activations))
    assert [c.kernel for c in calls] == ["flash_attention", "flash_join"][: len(calls)]
    assert (len(calls) > 1) == (n >= 2 * SPLIT_ROWS)
    runner.memory = {name: Memory(nbytes) for name, nbytes in needed.items()}
    for call in calls:
        runner.run(call)
    ((tid, wanted),) = run_oracle(graph, values).items()
    allowed = rounding_allowances(graph, values, {tid: wanted})[tid]
    got = memory[tid].view.view(np.float32).reshape(wanted.shape)
    # Elements of q8_0 are rounded to f16 either way.
    share_of = 0.02 if activations == "f32" and kind != "q8_0" else 1.0
    assert (np.abs(got - wanted) <= 2e-5 + 1e-5 * np.abs(wanted) + share_of * allowed).all()
    assert np.isnan(memory[tid].bytes[-32:].view(np.float32)).all(), "what lies behind is as it was"
    return calls


# --- heads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [F16, F32], ids=str)
@pytest.mark.parametrize("tokens", [1, 3, 70])
@pytest.mark.parametrize("wrong", [False, True])
def test_joined_heads(runner, kind, tokens, wrong):
    from ggsched_cuda_kernels.kernel_selection import lower

    width, rng = 80, np.random.default_rng(1)
    g = GraphBuilder("heads")
    positions, rows = g.input("positions", (tokens,), I32), g.input("rows", (tokens,), I32)
    q, k = g.input("q", (tokens, 4, width)), g.input("k", (tokens, 2, width))
    v, factors = g.input("v", (tokens, 2 * 64)), g.input("factors", (32,))
    caches = [g.input(name, (80, m), kind) for name, m in (("keys", 2 * width), ("values", 128))]
    turned = g.rope(q, positions, n_dims=width, pairing="halves")
    k = g.rope(k, positions, factors, n_dims=64, pairing="adjacent")
    keys = g.set_rows(caches[0], g.reshape(k, tokens, 2 * width), rows)
    graph = g.build(turned, keys, g.set_rows(caches[1], v, rows))
    values = {
        t.name: np.asarray(rng.uniform(0.25, 1, t.shape)).astype(np.float32)
        for t in graph.roots(Role.INPUT)
    }
    values["positions"] = np.arange(5, 5 + tokens, dtype=np.int32)
    values["rows"] = rng.permutation(80)[:tokens].astype(np.int32)
    for name, cache in zip(("keys", "values"), caches, strict=True):
        values[name] = np.zeros(cache.shape, np.float16 if kind is F16 else np.float32)
    given = values["rows"].copy()
    given[-1] += 100 * wrong
    nodes, memory = laid_out(graph, {**values, "rows": given})
    nodes[1:3] = [replace(node, group=Group("rope+set_rows", (1, 2))) for node in nodes[1:3]]
    (call,), _ = lower(nodes, H200)
    assert call.kernel == ("rope_kv_write" if tokens < 65 else "rope_tokens")
    runner.fault[:] = 0
    runner.run(call, {nodes[2].label: 7, nodes[3].label: 7})
    expected = run_oracle(graph, values)
    assert runner.fault[:3].tolist() == ([7, given[-1], 80] if wrong else [0, 0, 0])
    for tid, wanted in expected.items():
        t = graph.tensors[tid]
        got = memory[t.storage].view.view(wanted.dtype).reshape(wanted.shape)
        if wrong and tid != graph.outputs[0]:
            wanted[values["rows"][-1]] = 0
        np.testing.assert_allclose(got, wanted, 2e-3 if kind is F16 else 1e-5, 1e-5)
