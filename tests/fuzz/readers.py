"""Each reader of files and messages: valid input, made by the tests' own writers, and its use.

An input is a set of files by name. ``use`` does what a user does with them. It may return, or raise
a ``GgschedError``; anything else is a finding.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from onnx import TensorProto

from ggsched.calibrate.cache import read_rates
from ggsched.cli.main import main
from ggsched.errors import UsageError
from ggsched.files.mapping import require_unchanged
from ggsched_cluster import messages
from ggsched_cluster.weights import Offer, Sources
from ggsched_commands import onnx_options
from ggsched_import.onnx import from_onnx
from ggsched_llm.chat import ChatTemplate, Message
from ggsched_llm.graph import build_model_graph
from ggsched_llm.load import load_model, weight_array
from ggsched_testing.journal import Journal
from ggsched_testing.litmus.notation import parse_litmus
from tests.importers.onnx_files import I64, model, node, tensor
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.test_hf_folder import write_folder, write_tokenizer
from tests.models.vocabularies import BPE_META, SPM_META

Input = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that takes files from strangers.

    Attributes:
        name: For people.
        corpus: Writes valid inputs into a folder and yields them.
        use: Reads the input that lies in a folder.
    """

    name: str
    corpus: Callable[[Path], Iterator[Input]]
    use: Callable[[Path], object]


def write(folder: Path, files: Input) -> None:
    """Put an input into a folder."""
    for name, data in files.items():
        (folder / name).write_bytes(data)


def _files(folder: Path) -> Input:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _gguf(folder: Path) -> Iterator[Input]:
    for arch, meta in (("llama", BPE_META), ("qwen3moe", SPM_META)):
        path = folder / "model.gguf"
        tiny_gguf(path, arch, meta=meta, vocab=len(meta["tokenizer.ggml.tokens"]))
        yield {path.name: path.read_bytes()}


def _use_model(path: Path) -> None:
    found = load_model(path, weights="packed")
    build_model_graph(found.spec, n_tokens=2, n_kv=32, n_out=1, n_ctx=64)
    for name in found.spec.weights:
        weight_array(found, name).tobytes()
    if found.tokenizer.has_text:
        found.tokenizer.decode(found.tokenizer.encode("12+3= <s>\n"))


def _folder(folder: Path) -> Iterator[Input]:
    write_tokenizer(write_folder(folder))
    yield _files(folder)


def _onnx(folder: Path) -> Iterator[Input]:
    weights = {"w": np.ones((3, 2), np.float32), "s": np.array([2, 3])}
    nodes = [node("Reshape", "x s", "a"), node("MatMul", "a w", "b"), node("Softmax", "b", "y")]
    made = model(nodes, [tensor("x", [6])], [tensor("y", None)], weights)
    yield {"m.onnx": made.SerializeToString(), "w.bin": b""}
    (w,) = (t for t in made.graph.initializer if t.name == "w")
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="w.bin")
    yield {"m.onnx": made.SerializeToString(), "w.bin": weights["w"].tobytes()}
    shapes = [
        node("ConstantOfShape", "s", "c"),
        node("Range", "z n o", "r"),
        node("Tile", "r n1", "t"),
        node("Resize", "x _ _ wide", "p"),
        node("Expand", "x two", "e"),
    ]
    numbers = {"s": [2, 2], "n1": [2], "wide": [12], "two": [1, 6]}
    scalars = {name: np.array(value) for name, value in {"z": 0, "n": 4, "o": 1}.items()}
    given = {name: np.array(value) for name, value in numbers.items()} | scalars
    made = model(shapes, [tensor("x", [6])], [tensor("t", None, I64)], given)
    yield {"m.onnx": made.SerializeToString(), "w.bin": b""}


def _use_onnx(folder: Path) -> None:
    try:
        for weight in from_onnx(folder / "m.onnx").bind().weights.values():
            weight.tobytes()
            require_unchanged([weight])
    except OSError as error:  # as ``from_onnx`` documents
        raise UsageError("cannot be read", why=str(error)) from error


def _npy(folder: Path) -> Iterator[Input]:
    for array in (np.ones((2, 3), np.float32), np.array(1), np.zeros((0, 2)), np.ones(3, "<f8")):
        file = BytesIO()
        np.save(file, array)
        yield {"x.npy": file.getvalue()}


def _use_npy(folder: Path) -> None:
    found = onnx_options._load(str(folder / "x.npy"))
    found.tobytes()
    require_unchanged([found])


LLAMA = str(ORACLE / "llama-tiny-f32.gguf")


def _command(*arguments: str) -> None:
    """Run a command; what it does not expect, or says in several lines, is a finding."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments])
    said = [line for line in err.getvalue().splitlines() if line]
    errors = [line for line in said if line.startswith("ggsched: error: ")]
    if code not in (0, 1, 2) or (code == 2 and len(errors) != 1) or "Traceback" in err.getvalue():
        raise AssertionError(f"exit code {code}: {err.getvalue()[-800:]}")


def _plan(folder: Path) -> Iterator[Input]:
    _command("plan", LLAMA, "--devices", "cpu:0,cpu:1", "-o", str(folder / "p.json"))
    yield _files(folder)


def _trace(folder: Path) -> Iterator[Input]:
    for name in ("t.jsonl", "t.json"):
        path = folder / name
        _command(
            "run", LLAMA, "--tokens", "3", "-n", "1", "--devices", "cpu:0", "--trace", str(path)
        )
        yield {"t": path.read_bytes()}


def _topology(folder: Path) -> Iterator[Input]:
    out = StringIO()
    with redirect_stdout(out):
        main(["devices", "--json"])
    yield {"topology.json": out.getvalue().encode()}


def _litmus(folder: Path) -> Iterator[Input]:
    for path in sorted((Path(__file__).parents[1] / "litmus").glob("*.litmus")):
        yield {"x.litmus": path.read_bytes()[:4000]}


def _use_litmus(folder: Path) -> None:
    try:
        text = (folder / "x.litmus").read_bytes().decode()
    except UnicodeDecodeError:
        return
    parse_litmus(text, "x")


TEMPLATES = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}\n{% endfor %}{{ eos_token }}",
    "{% if not messages[0].content %}{{ raise_exception('no') }}{% endif %}{{ messages | tojson }}",
    "{% macro f(x, n=2) %}{{ x ~ n }}{% endmacro %}{{ f('ab') }}{% set ns = namespace(i=0) %}"
    "{% for m in messages %}{% set ns.i = ns.i + loop.index %}{{ ns.i }}{% endfor %}",
    "{{ messages | map(attribute='role') | join(',') | upper | replace('U', 'V') }}"
    "{{ '%5d' | format(3) }}{{ range(3) | list | length }}{{ [1, 2] | sum }}",
)


def _chat(folder: Path) -> Iterator[Input]:
    for text in TEMPLATES:
        yield {"t.jinja": text.encode()}


def _use_chat(folder: Path) -> None:
    source = (folder / "t.jinja").read_bytes().decode("utf-8", "replace")
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, "t.jinja")
    template.render([Message("user", "hi"), Message("assistant", "{{ x }}")])


def _messages(folder: Path) -> Iterator[Input]:
    offer = Offer("<f4", (2, 2), 16, 0, "0" * 32, "/nowhere/w", 16, 0)
    opened = messages.Open(1, "v", "d", ("cpu:0",), None, 3.0)
    yield {"m": messages.encode(opened), "offer": msgspec.msgpack.encode(offer)}


def _use_messages(folder: Path) -> None:
    try:
        messages.decode([(folder / "m").read_bytes()])
        offer = msgspec.msgpack.decode((folder / "offer").read_bytes(), type=Offer)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # such a message is dropped
        return
    Sources(str(folder), str(folder)).find("w", offer)


def _rates(folder: Path) -> Iterator[Input]:
    device = {
        "description": "d", "calibrated": "2026-01-01", "flops": 1e9, "bandwidth": 1e9,
        "total_bandwidth": 1e9, "parallel": 1, "node_s": 0.0, "event_s": 0.0, "launch_s": 0.0,
        "kernels": {"mul_mat": {"flops": 1e9, "bandwidth": 1e9}},
    }  # fmt: skip
    link = {"src": "host", "dst": "a", "latency_s": 0.0, "bandwidth": 1e9}
    file = {"format": "ggsched-rates/1", "enqueue_s": 0.0, "devices": {"a": device}}
    yield {"rates.json": json.dumps({**file, "links": [link]}).encode()}


def _journal(folder: Path) -> Iterator[Input]:
    keys = ["a", "b"]
    journal: Journal[dict[str, int]] = Journal(
        folder / "j", work="w", keys=keys, type=dict[str, int]
    )
    journal.add(0, {"x": 1})
    journal.add(1, {"y": 2})
    yield _files(folder)


def _use_journal(folder: Path) -> None:
    Journal(folder / "j", work="w", keys=["a", "b"], type=dict[str, int]).results(2)


READERS = (
    Reader("gguf", _gguf, lambda folder: _use_model(folder / "model.gguf")),
    Reader("hf", _folder, _use_model),
    Reader("onnx", _onnx, _use_onnx),
    Reader("npy", _npy, _use_npy),
    Reader("plan", _plan, lambda folder: _command("check", str(folder / "p.json"))),
    Reader("trace", _trace, lambda folder: _command("trace", str(folder / "t"))),
    Reader("checked trace", _trace, lambda folder: _command("check", str(folder / "t"))),
    Reader(
        "topology",
        _topology,
        lambda folder: _command("plan", LLAMA, "--topology", str(folder / "topology.json")),
    ),
    Reader("litmus", _litmus, _use_litmus),
    Reader("chat", _chat, _use_chat),
    Reader("messages", _messages, _use_messages),
    Reader("rates", _rates, lambda folder: read_rates(folder / "rates.json")),
    Reader("journal", _journal, _use_journal),
)


def corpus_of(reader: Reader) -> list[Input]:
    """Return the valid inputs of a reader."""
    with TemporaryDirectory() as folder:
        return list(reader.corpus(Path(folder)))


def fresh(folder: Path) -> Path:
    """Return a folder after it was emptied."""
    for path in folder.iterdir():
        os.unlink(path)
    return folder
