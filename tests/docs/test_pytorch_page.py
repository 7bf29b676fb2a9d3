"""The page about PyTorch models: its Python snippets run in order, and print what it says."""

import doctest

import pytest

pytest.importorskip("torch")

from tests.docs.test_how_to import FLAGS, snippets
from tests.meta.repository import ROOT

PAGE = ROOT / "docs/how-to/run-a-pytorch-model.md"


@pytest.mark.filterwarnings("ignore")
def test_snippets_run(capsys):
    from ggsched.importers.torch.call import CONVERTERS

    before = dict(CONVERTERS)
    names = {"__name__": PAGE.stem}
    try:
        for code, wanted, line in snippets(PAGE.read_text(encoding="utf-8")):
            exec(compile("\n" * line + code, str(PAGE), "exec"), names)
            printed = capsys.readouterr().out
            if wanted is not None:
                same = doctest.OutputChecker().check_output(wanted, printed, FLAGS)
                assert same, f"line {line} printed:\n{printed}\ninstead of:\n{wanted}"
    finally:
        CONVERTERS.clear()
        CONVERTERS.update(before)
        if "library" in names:
            names["library"]._destroy()
