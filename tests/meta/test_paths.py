import re
from pathlib import Path

import pytest

from tests.meta.repository import ROOT, name_of, own_files

TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".txt", ".cl", ".h", ".cu", ".cfg", ""}

# An absolute path, at the start of a line or behind a space, a quote, an equals sign or a bracket.
ABSOLUTE = re.compile(r"""(?:^|[\s"'`=(\[])(/[a-z][\w.-]*/[\w.-]+[\w./-]*)""", re.M)
# Where every machine has the same things.
COMMON = ("/usr/", "/etc/", "/proc/", "/sys/", "/dev/", "/bin/", "/path/to/")
ELSEWHERE = re.compile(r"file:/|\b[A-Z]:\\{1,2}Users|index-url|find-links|/site-packages/")


def _flaws(text):
    for path in ABSOLUTE.findall(text):
        if not path.startswith(COMMON):
            yield path
    yield from ELSEWHERE.findall(text)
    here = {str(ROOT), str(Path.home())} - {"/", "/root"}
    yield from (place for place in here if place in text)


@pytest.mark.parametrize(
    "text",
    [
        "cd /" + "home/me/code",
        'open("/' + 'data/x")',
        "x=/" + "Users/me/x".lower(),
        "--" + "index-url x",
        "file:/" + "/x",
    ],
)
def test_the_pattern_finds(text):
    assert list(_flaws(text))


@pytest.mark.parametrize("text", ["read/write", "and/or x / y", "a //b", "/usr/bin/env", "1/2/3"])
def test_the_pattern_leaves_alone(text):
    assert not list(_flaws(text))


def test_no_path_of_a_machine():
    found = {}
    for path in own_files():
        if path.suffix not in TEXT or path.name == Path(__file__).name:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        flaws = sorted(set(_flaws(text)))
        if flaws:
            found[name_of(path)] = flaws
    assert not found
