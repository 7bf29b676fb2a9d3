"""The page about PyTorch models: its Python snippets run in order, and print what it says."""

import doctest

import pytest

torch = pytest.importorskip("torch")

from tests.docs.test_how_to import FLAGS, snippets  # noqa: E402
from tests.meta.repository import ROOT  # noqa: E402

PAGE = ROOT / "docs/how-to/run-a-pytorch-model.md"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("registries_restored")
def test_snippets_run(capsys):
    from ggsched_import.torch.dynamo import backend, release

    if "ggsched" not in torch._dynamo.list_backends():  # installed before it had the entry point
        torch._dynamo.register_backend(backend, name="ggsched")

    names = {"__name__": PAGE.stem}
    try:
        for code, wanted, line in snippets(PAGE.read_text(encoding="utf-8")):
            exec(compile("\n" * line + code, str(PAGE), "exec"), names)
            printed = capsys.readouterr().out
            if wanted is not None:
                same = doctest.OutputChecker().check_output(wanted, printed, FLAGS)
                assert same, f"line {line} printed:\n{printed}\ninstead of:\n{wanted}"
    finally:
        torch._dynamo.reset()
        release()
        if "library" in names:
            names["library"]._destroy()
