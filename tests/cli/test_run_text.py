"""``ggsched run``: prompts from files, stop strings, metadata overrides, conversations."""

import io
import json
import sys

import pytest

from ggsched.cli.main import main
from tests.models.helpers import ORACLE, tiny_gguf
from tests.models.vocabularies import BPE_META, PREFIX

TEMPLATE = """{% for m in messages %}<|user|>{{ m.role[0] }} {{ m.content }}{% endfor %}{% if add_generation_prompt %}<|user|>{% endif %}"""  # noqa: E501
CPU = ["--devices", "cpu:0"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "m.gguf"
    meta = {**BPE_META, "tokenizer.chat_template": TEMPLATE}
    return str(tiny_gguf(path, meta=meta, vocab=len(BPE_META[PREFIX + "tokens"])))


@pytest.fixture
def run(capsys, model):
    def call(*arguments, path=model):
        code = main(["run", *([path] if path else []), *CPU, *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_prompt_from_a_file(run, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("hello world\n", encoding="utf-8")
    assert run("-f", file, "-n", 3)[:2] == run("-p", "hello world\n", "-n", 3)[:2]
    code, _, err = run("-f", file, "-p", "hello")
    assert code == 2
    assert "given twice" in err
    file.write_bytes(b"\xff\xfe")
    code, _, err = run("-f", file)
    assert code == 2
    assert "prompt.txt:1: not a text in UTF-8" in err
    file.write_bytes(b"hello\r\nworld\r")
    assert run("-f", file, "-n", 3)[:2] == run("-p", "hello\nworld\n", "-n", 3)[:2]


def test_escapes_are_read_on_request(run):
    plain = run("-p", "hello\nworld", "-n", 3)[1]
    assert run("-p", r"hello\nworld", "-n", 3, "-e")[1] == plain
    assert run("-p", r"hello\nworld", "-n", 3)[1] == run("-p", "hello\\nworld", "-n", 3)[1]
    assert run("-p", r"hello\\n", "-n", 3, "--escape")[1] == run("-p", r"hello\n", "-n", 3)[1]


def test_as_many_tokens_as_the_context_holds(run):
    """-1 says that it is full, -2 asks for that."""
    known = run("-p", "hello", "-n", 3, "-c", 16)[1]
    code, least, err = run("-p", "hello", "-n", -2, "-c", 16)
    assert (code, "is full" in err) == (0, False)
    code, most, err = run("-p", "hello", "-n", -1, "-c", 16)
    assert (code, most) == (0, least)
    assert "the context of 16 tokens is full (see -c)" in err
    assert most.startswith(known[:-1])
    assert len(most) > len(known)


def test_the_end_of_the_text_is_ignored_on_request(run):
    """As llama.cpp does: tokens that end a text are never chosen."""
    asked = ("-p", "417+385=", "-n", 8, "--json")
    found = [json.loads(run(*asked, *more, path="demo")[1]) for more in ((), ("--ignore-eos",))]
    short, long = (done["tokens"] for done in found)
    assert len(short) < 8 == len(long)
    assert long[: len(short)] == short
    assert found[1]["text"].startswith("802")


def test_model_as_an_option(run, model):
    assert (
        run("-m", model, "-p", "hello", "-n", 2, path=None)[:2] == run("-p", "hello", "-n", 2)[:2]
    )
    assert run("-m", model, "-p", "hello")[0] == 2
    code, _, err = run("-p", "hello", path=None)
    assert code == 2
    assert "MODEL" in err


def test_text_ends_before_a_stop_string(run):
    options = ["-p", "hello", "-n", 12, "--temp", 1]
    _, whole, _ = run(*options)
    stop = whole[3:5]
    code, cut, _ = run(*options, "--stop", stop)
    assert code == 0
    assert cut == whole[: whole.index(stop)] + "\n"
    _, data, _ = run(*options, "--stop", stop, "--json")
    assert json.loads(data)["text"] == cut[:-1]


def test_filters(run):
    greedy = run("-p", "hello", "-n", 4)[1]
    assert run("-p", "hello", "-n", 4, "--temp", 2, "--top-k", 1)[1] == greedy
    assert run("-p", "hello", "-n", 4, "--temp", 2, "--min-p", 1)[1] == greedy
    for bad in (["--top-p", 2], ["--min-p", -1], ["--repeat-penalty", 0], ["--top-k", -3]):
        assert run("-p", "hello", *bad)[0] == 2


def test_override_of_metadata(run):
    assert run("-p", "hello", "--override-kv", "llama.rope.freq_base=float:5e5")[0] == 0
    code, _, err = run("-p", "hello", "--override-kv", "llama.block_count=int:7000")
    assert code == 2
    assert "key llama.block_count: is 7000" in err
    for text in ("a", "a=b", "a=int:x", "a=float:nan", "a=bool:yes", "a=list:1", "=int:1"):
        assert run("-p", "hello", "--override-kv", text)[0] == 2


def test_overrides_that_nothing_reads(run):
    given = (
        "llama.rope.freq_base=float:5e5",
        "general.name=str:x",
        "tokenizer.chat_template=str:y",
    )
    assert "have no effect" not in run("-p", "hello", *(f"--override-kv={kv}" for kv in given))[2]
    code, _, err = run("-p", "hello", "--override-kv", "llama.rope.freq_bas=float:1")
    assert code == 2
    assert "key llama.rope.freq_bas is 1.0: ggsched does not know it" in err
    for kv in ("llama.pooling_type=int:1", "qwen2.block_count=int:1", "split.count=int:2"):
        code, _, err = run("-p", "hello", "--override-kv", kv)
        key = kv.partition("=")[0]
        assert code == 0
        assert f"overrides of keys that this model does not read have no effect: '{key}'" in err


def talk(monkeypatch, run, *lines, options=()):
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(line + "\n" for line in lines)))
    return run("--chat", "-n", 3, *options)


def test_conversation(monkeypatch, run):
    code, first, _ = talk(monkeypatch, run, "hello")
    assert code == 0
    assert first == run("-p", "<|user|>u hello<|user|>", "-n", 3)[1]
    code, both, _ = talk(monkeypatch, run, "hello", "", "world")
    assert code == 0
    assert both.startswith(first)
    prompt = f"<|user|>u hello<|user|>a {first[:-1]}<|user|>u world<|user|>"
    assert both.removeprefix(first) == run("-p", prompt, "-n", 3)[1]
    assert talk(monkeypatch, run, options=["-p", "hello"])[1] == first
    system = talk(monkeypatch, run, "hello", options=["-sys", "world"])[1]
    assert system == run("-p", "<|user|>s world<|user|>u hello<|user|>", "-n", 3)[1]


def test_control_tokens_in_questions_are_text(monkeypatch, run):
    plain = talk(monkeypatch, run, "hello<|end|>")
    parsed = talk(monkeypatch, run, "hello<|end|>", options=["--parse-special"])
    assert (plain[0], parsed[0]) == (0, 0)
    assert parsed[1] == run("-p", "<|user|>u hello<|end|><|user|>", "-n", 3)[1]
    assert plain[1] != parsed[1]
    assert talk(monkeypatch, run, "hello", options=["--parse-special"]) == talk(
        monkeypatch, run, "hello"
    )


def test_questions_that_cannot_be_read(monkeypatch, run):
    for stdin, why in (
        (None, "stdin is closed"),
        (io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"), "invalid start byte"),
        (io.StringIO("x" * (1 << 20)), "1048576 characters"),
    ):
        monkeypatch.setattr(sys, "stdin", stdin)
        code, _, err = run("--chat", "-n", 3)
        assert code == 2
        assert err.startswith("ggsched: error: -: ")
        assert why in err
        assert err.count("\n") == 1


def test_conversations_that_cannot_be(monkeypatch, run):
    code, _, err = talk(monkeypatch, run, "hello " * 80)
    assert code == 2
    assert "the context holds 64" in err
    assert talk(monkeypatch, run, "hello", options=["--json"])[0] == 2
    code, _, err = talk(
        monkeypatch, lambda *a: run(*a, path=str(ORACLE / "llama-tiny-f32.gguf")), "x"
    )
    assert code == 2
    assert "has no chat template" in err


@pytest.mark.parametrize(
    "options",
    [
        ("--tokens", "1"),
        ("--logits", "x.npy"),
        ("--json",),
        ("--context-shift",),
        ("--retries", "2"),
    ],
)
def test_what_conversations_do_not_have(run, options):
    code, _, err = run("--chat", "-p", "hello", *options)
    assert code == 2
    assert f"{options[0]} cannot be used with --chat" in err
