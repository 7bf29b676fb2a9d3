"""A file that is cut, emptied or replaced at any moment of its reading: no signal, one line."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOWS = ("cut", "empty", "replace", "rewrite", "longer")

CHILD = """
import itertools, logging, os, sys
from pathlib import Path
from tests.files.test_changes import HOWS, Changes
from tests.fuzz.__main__ import finding_of
from tests.fuzz.readers import READERS, corpus_of, fresh, write
logging.disable()
folder, names = Path(sys.argv[1]), sys.argv[2:]
for reader in (r for r in READERS if r.name in names):
    files = corpus_of(reader)[-1 if reader.name == "npy" else 0 if reader.name != "onnx" else 1]
    tried = 0
    for how in HOWS:
        for moment in itertools.count():
            write(fresh(folder), files)
            with Changes(folder, how, moment) as changes:
                finding = finding_of(reader, folder)
            if finding:
                print(reader.name, how, moment, finding)
            tried += 1
            if not changes.happened:
                break
    print(reader.name, "tried", tried)
"""


class Changes:
    """Changes the file that is read at one moment: each opening, reading and mapping is one.

    All files of a folder pass through ``ggsched.files``, so three functions are where it happens.
    """

    def __init__(self, folder: Path, how: str, moment: int) -> None:
        self.folder, self.how, self.left = folder, how, moment
        self.happened = False
        self._patch = pytest.MonkeyPatch()

    def __enter__(self):
        from ggsched.files import mapping, reading

        for module, name in ((reading.os, "fstat"), (reading, "read_some")):
            self._patch.setattr(module, name, self._changing(getattr(module, name)))
        self._patch.setattr(mapping.mmap, "mmap", self._changing(mapping.mmap.mmap))
        return self

    def __exit__(self, *error):
        self._patch.undo()

    def _changing(self, call: Callable):
        def changed(descriptor, *arguments, **options):
            path = Path(f"/proc/self/fd/{descriptor}").resolve()
            found = call(descriptor, *arguments, **options)
            if path.parent == self.folder:
                self._pass(path)
            return found

        return changed

    def _pass(self, path: Path):
        self.left -= 1
        if self.left != -1 or not path.exists():
            return
        self.happened = True
        data = path.read_bytes()
        other = bytes(b ^ 0x55 for b in data)
        match self.how:
            case "cut":
                path.open("r+b").truncate(len(data) // 2)
            case "empty":
                path.open("r+b").truncate(0)
            case "longer":
                path.open("ab").write(data)
            case "rewrite":
                path.open("r+b").write(other)
            case _:
                new = path.with_name("new")
                new.write_bytes(other)
                new.replace(path)


@pytest.mark.skipif(sys.platform != "linux", reason="the handler of lost pages is Linux's")
def test_a_file_that_changes_while_it_is_read(tmp_path):
    """All readers in one process, which a lost page would end."""
    readers = ("gguf", "hf", "onnx", "npy", "rates", "journal")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path, *readers],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    said = [line.split(" tried ") for line in done.stdout.splitlines()]
    assert sorted(name for name, *_ in said) == sorted(readers), done.stdout
    assert all(int(tried) > 2 * len(HOWS) for _, tried in said)
