"""Options of llama.cpp: each name of its help is known, with its values, and becomes what is said.

``llama_cpp_options.txt`` has the names of ``common/arg.cpp``, of the pages that it generates for
its tools and of llama-bench, at 2026-11; ``V`` stands for a value.
"""

from functools import cache
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ggsched.cli.main import cli, main
from ggsched.cli.spelling import spelled
from ggsched_commands.llama_cpp import llama_cpp_options
from ggsched_commands.page import commands
from ggsched_llm.offload import read_overrides

LISTED = [
    (name, line.split().count("V"))
    for line in Path(__file__).with_name("llama_cpp_options.txt").read_text().splitlines()
    for name in line.split()
    if name != "V"
]
MODEL_COMMANDS = ["run", "bench", "perplexity", "plan"]
OTHER_FORMS = {"--slots", "--output", "--check", "--fit", "-h", "--help"}
"""Also options of ggsched, with other values."""


COMMANDS = commands()


@cache
def options_of(name):
    found = {}
    for param in COMMANDS[name].params:
        if isinstance(param, click.Option):
            found |= dict.fromkeys((*param.opts, *param.secondary_opts), param)
    return found


@pytest.fixture
def words(capsys):
    """Spell a command line of a command; return the words, and the note if there is one."""

    def call(text, name="run"):
        command = COMMANDS[name]
        context = click.Context(command, click.Context(cli, info_name="ggsched"), name)
        foreign = llama_cpp_options() if name in MODEL_COMMANDS else {}
        found = spelled(command, context, text.split(), foreign)
        return " ".join(found), capsys.readouterr().err

    return call


@pytest.mark.parametrize("command", MODEL_COMMANDS)
def test_every_name_is_known_with_as_many_values(command):
    """As an option of the command, in the table, or as an option of another command."""
    own, foreign = options_of(command), llama_cpp_options()
    known = {"-h", "--help", *foreign}.union(*map(options_of, MODEL_COMMANDS))
    assert {name for name, _ in LISTED} <= known
    for name, n_values in LISTED:
        if name in foreign and foreign[name].word is None:
            assert foreign[name].n_values == n_values or name in ("--repack",), name
        elif name in own and name not in foreign and name not in OTHER_FORMS:
            is_flag = own[name].is_flag
            assert (0 if is_flag else own[name].nargs) == n_values, name


def test_the_table_has_nothing_else():
    """A name that is not llama.cpp's would hide a typing error."""
    listed = {name for name, _ in LISTED}
    assert set(llama_cpp_options()) <= listed


def test_what_options_mean_exists():
    """Each replacement is an option of all commands of models."""
    targets = {
        o.text.split()[0] for o in llama_cpp_options().values() if o.kind == "means" and o.text
    }
    for command in MODEL_COMMANDS:
        assert targets <= {*options_of(command), "--help"}


def test_an_option_of_another_command_is_named(capsys):
    assert main(["bench", "demo", "--temp", "1"]) == 2
    assert "No such option '--temp'; 'ggsched run' has it" in capsys.readouterr().err


def test_reasons_are_one_line_and_say_what_to_do():
    for name, option in llama_cpp_options().items():
        if option.kind != "means":
            assert "\n" not in option.text, name
            assert len(name) + len(option.text) <= 115, name
            assert not option.text.endswith("."), name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-dev CUDA0,CUDA1", "--devices cuda:0,cuda:1,cpu:0"),
        ("--device none", "--devices cpu:0"),
        ("-dev opencl:0,cpu:0", "--devices opencl:0,cpu:0"),
        ("-fit on x", "--fit on x"),
        ("--fit x", "--fit on x"),
        ("--fit=off x", "--fit off x"),
        ("-fitt 512", "--fit-margin 512MiB"),
        ("--no-op-offload", "--op-offload off"),
        ("-nopo 0", ""),
        ("--op-offload", "--op-offload auto"),
        ("--op-offload on", "--op-offload on"),
        ("-nkvo", "-ot [.][kv]_cache$=cpu"),
        ("-nkvo 0 -kvo --jinja -no-cnv", ""),
        ("-np 1 --mirostat 0 --typical 1.0 --presence-penalty 0.0 -mg 0", ""),
        ("--n_gpu_layers 3 --override_kv a_b=int:1", "--n-gpu-layers 3 --override-kv a_b=int:1"),
        ("-n -1 -p -x --temp -1", "-n -1 -p -x --temp -1"),
        ("-ngl=3 -n16 -c=9", "-ngl 3 -n 16 -c 9"),
        ("-p -- -- -hf", "-p -- -- -hf"),
        ("--slots 3 --memory-effort=1", "--pipeline-buffers 3 --packing-effort 1"),
    ],
)
def test_what_becomes_of_words(words, text, expected):
    assert words(text) == (expected, "")


@pytest.mark.parametrize("text", ["-fa", "-fa on", "-fa 1", "--flash_attn=auto"])
def test_what_changes_nothing_is_noted(words, text):
    name = text.split()[0].partition("=")[0].replace("_", "-")
    assert words(f"{text} x") == ("x", f"ggsched: note: {name}: attention is always fused here\n")
    assert words("-fa -fa x")[1].count("\n") == 1


def test_each_is_understood_or_refused_by_its_own_name(words):
    """None is taken for another option, and no value of it for the model."""
    for name, option in llama_cpp_options().items():
        if name in options_of("run") or name == "--slots":
            continue
        values = ["77"] * (option.n_values if option.word is None else 0)
        text = " ".join([name, *values, "model"])
        if option.kind == "refused":
            with pytest.raises(click.UsageError, match=rf"^{name}: "):
                words(text)
        else:
            assert words(text)[0].split()[-1] == "model", name


VALUED = [
    name
    for name, option in options_of("run").items()
    if not option.is_flag and option.nargs == 1 and name not in llama_cpp_options()
]


@given(st.lists(st.tuples(st.sampled_from(VALUED), st.text() | st.sampled_from([*VALUED, "-hf"]))))
def test_values_are_never_read_as_options(pairs):
    """Whatever they are, and however they are attached."""
    context = click.Context(COMMANDS["run"], click.Context(cli, info_name="ggsched"), "run")
    expected = [word for pair in pairs for word in pair]
    for given_words in (expected, [f"{name}={value}" for name, value in pairs]):
        assert spelled(COMMANDS["run"], context, list(given_words), llama_cpp_options()) == expected


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("a=X", ["a=X"]),
        ("a=X,b=Y", ["a=X", "b=Y"]),
        ("a=X;b=Y", ["a=X", "b=Y"]),
        ("blk[.][0-9]{1,2}[.]=cpu:0,c=Y", ["blk[.][0-9]{1,2}[.]=cpu:0", "c=Y"]),
        ("a=b=X", ["a=b=X"]),
    ],
)
def test_lists_of_overrides(text, rules):
    assert [f"{o.pattern.pattern}={o.device}" for o in read_overrides(text)] == rules
    for odd in ("a", "a=X,b"):
        with pytest.raises(ValueError, match="is not REGEX=DEVICE"):
            read_overrides(odd)


def test_lists_of_keys(capsys):
    keys = "llama.rope.freq_base=float:5e5,general.name=str:x,y"
    assert main(["plan", "tests/data/oracle/llama-tiny-f32.gguf", "--override-kv", keys]) in (0, 2)
    assert "--override-kv" not in capsys.readouterr().err
