"""Every fenced block of the documentation is checked, by its language.

``python`` runs behind the blocks above it on its page; a block that begins with the name of a file
is written there, for the others to import. A fence ``text`` right after it is what it prints;
``...`` stands for anything. ``sh`` calls commands that exist, with options that they have; those of
pages below ``docs/start`` run. ``litmus`` is judged, and what follows it is computed.
"""

import doctest
import io
import json
import re
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from ggsched.backend.registry import offered
from ggsched.cli.main import main
from ggsched_commands.page import commands, options
from tests.docs.three_ways import PAIR, filled
from tests.meta.repository import ROOT, name_of, own_files

PAGES = [p for p in own_files() if p.suffix == ".md" and name_of(p).startswith(("README", "docs/"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)
LANGUAGES = {"python", "py", "text", "sh", "console", "bash", "zsh", "fish", "json", "litmus", ""}
START = ROOT / "docs" / "start"
FILE_NAME = re.compile(r"# (\w+)\.py\n")
INDENTED = re.compile(r"^ {4}((?:GGSCHED_\w+=\S+ )*ggsched .*)$", re.M)
INLINE = re.compile(r"`((?:GGSCHED_\w+=\S+ )?ggsched [a-z][^`\n]*)`")
EVERYWHERE = {"-h", "--help", "--version"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

PIECES = {"docs/how-to/add-an-op.md"}
"""Pages whose Python is pieces of files, as they are changed."""
NEEDS_TORCH = {"docs/how-to/run-a-pytorch-model.md"}

ELSEWHERE = {"new-backend", "conform", "calibrate", "litmus"}
"""Commands that install a package or measure for seconds; each has tests of its own."""


def fences(page):
    """Return the fences of a page: where each starts and ends, its language, head and text."""
    return list(FENCE.finditer(page.read_text(encoding="utf-8")))


def pages_with(*languages):
    return [p for p in PAGES if any(f[1] in languages for f in fences(p))]


def test_languages_are_known():
    found = {(f[1], name_of(page)) for page in PAGES for f in fences(page)}
    assert not [place for place in found if place[0] not in LANGUAGES]
    assert {language for language, _ in found} >= {"python", "sh", "json", "litmus"}


def snippets(page):
    """Yield the code, the expected output or None, and the line of each Python block."""
    text, found = page.read_text(encoding="utf-8"), fences(page)
    for fence, following in zip(found, [*found[1:], None], strict=True):
        if fence[1] == "python":
            is_output = following is not None and following[1] == "text"
            is_output = is_output and not text[fence.end() : following.start()].strip()
            yield fence[3], following[3] if is_output else None, text.count("\n", 0, fence.start())


@contextmanager
def torch_reset(names):
    """Register the backend of PyTorch, and release what a page has compiled with it."""
    torch = pytest.importorskip("torch")
    from ggsched_import.torch.dynamo import backend, release

    if "ggsched" not in torch._dynamo.list_backends():  # installed before it had the entry point
        torch._dynamo.register_backend(backend, name="ggsched")
    try:
        yield
    finally:
        torch._dynamo.reset()
        release()
        if "library" in names:
            names["library"]._destroy()


@contextmanager
def nothing(names):
    """Prepare nothing."""
    yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to write into, with the files that pages name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO("417+385\n"))  # of a conversation
    for name in ("tests", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)


def written(named, monkeypatch):
    """Write the module that a block is into the current folder; it is forgotten with the test."""
    Path(f"{named[1]}.py").write_text(named.string, encoding="utf-8")
    monkeypatch.setitem(sys.modules, named[1], None)
    del sys.modules[named[1]]


@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.usefixtures("registries_restored", "folder")
@pytest.mark.parametrize(
    "page", [p for p in pages_with("python") if name_of(p) not in PIECES], ids=name_of
)
def test_python_runs(page, capsys, monkeypatch):
    names = {"__name__": page.stem}
    monkeypatch.syspath_prepend(Path.cwd())
    with (torch_reset if name_of(page) in NEEDS_TORCH else nothing)(names):
        for code, wanted, line in snippets(page):
            if named := FILE_NAME.match(code):
                written(named, monkeypatch)
                continue
            padded = "\n" * (line + 1) + code  # so that a traceback has the line of the page
            exec(compile(padded, str(page), "exec"), names)
            printed = capsys.readouterr().out
            if wanted is not None:
                same = doctest.OutputChecker().check_output(wanted, printed, FLAGS)
                assert same, f"line {line} printed:\n{printed}\ninstead of:\n{wanted}"


@pytest.mark.usefixtures("registries_restored", "folder")
@pytest.mark.parametrize("backend", [name for name in ("cpu", "opencl") if name in offered()])
def test_the_op_of_the_page_conforms(backend, capsys, monkeypatch):
    page = ROOT / "docs" / "how-to" / "define-an-op.md"
    module, *_ = (found for code, *_ in snippets(page) if (found := FILE_NAME.match(code)))
    written(module, monkeypatch)
    (words,) = (w for w in calls(page.read_text("utf-8")) if w[:2] == ["conform", backend])
    assert main(words) == 0, capsys.readouterr().err


def words_of(line, values):
    """Return the words of a call of ggsched, or None of another line, up to a pipe."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words = [re.sub(r"^\$(\w+)$", lambda m: values.get(m[1], m[0]), word) for word in lexer]
    while words and (found := re.fullmatch(r"(\w+)=(.*)", words[0])):
        values[found[1]] = found[2]
        words.pop(0)
    if words[:1] != ["ggsched"] or len(words) < 2:
        return None
    end = next((i for i, word in enumerate(words) if set(word) & set("|&;<>")), None)
    return words[1:end]


def calls(text):
    """Yield each call of ggsched on a page, as words, with variables replaced."""
    shown = [f[3] for f in FENCE.finditer(text) if f[1] in ("sh", "console")]
    lines = [line for block in shown for line in block.splitlines()]
    values = {}
    for line in [*lines, *INDENTED.findall(text), *INLINE.findall(text)]:
        if (words := words_of(line, values)) is not None:
            yield words


def test_commands_and_options_exist():
    known, seen, wrong = commands(), 0, []
    for page in PAGES:
        for name, *words in calls(page.read_text(encoding="utf-8")):
            if name in {"[OPTIONS]", *EVERYWHERE} or name.isupper():
                continue
            seen += 1
            found = options(known[name]) if name in known else ()
            has = {o for option in found for o in (*option.opts, *option.secondary_opts)}
            used = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            if name not in known or not used <= has | EVERYWHERE:
                wrong.append((name_of(page), name, used - has))
    assert not wrong
    assert seen > 100


def test_commands_are_found():
    text = "```sh\nM=a.gguf\nA=1 ggsched run $M -n 8 | head  # x\n```\nand `ggsched check FILE`\n"
    assert list(calls(text)) == [["run", "a.gguf", "-n", "8"], ["check", "FILE"]]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", sorted(START.glob("*.md")), ids=name_of)
def test_first_results_run(page, capsys):
    for fence in fences(page):
        for words in calls(fence[0] + "\n"):
            if words[0] in ELSEWHERE or ("opencl:0,cpu:0" in words and "opencl" not in offered()):
                continue
            assert main(words) == 0, (words, capsys.readouterr().err)


@pytest.mark.parametrize("page", pages_with("json"), ids=name_of)
def test_json_is_valid(page):
    for fence in fences(page):
        if fence[1] == "json":
            json.loads(fence[3])


@pytest.mark.parametrize("page", pages_with("litmus"), ids=name_of)
def test_programs_are_judged(page):
    text = page.read_text(encoding="utf-8")
    assert len(PAIR.findall(text)) == sum(f[1] == "litmus" for f in fences(page))
    assert text == filled(text), f"run: python -m tests.docs.three_ways {name_of(page)}"
