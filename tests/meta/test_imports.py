import ast
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from tests.meta.repository import CODE, ROOT, name_of, python_files

VENDORS = {"pyopencl", "cuda", "nvmath", "cupy"}
CHECKERS = {"run", "trace", "sanitize"}


def _imported(path, among):
    """Yield modules that a file imports; one that names none of some packages is not parsed."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if any(name in text for name in among) else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (str(a.value) for a in node.args if isinstance(a, ast.Constant))


def test_contracts_hold():
    pytest.importorskip("importlinter", reason="import-linter is in the extra 'dev'")
    code = "from importlinter.cli import lint_imports_command as lint; lint()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--no-logo", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_vendor_libraries_stay_in_the_driver():
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in python_files(*CODE)
        if path.name != "driver.py"
        for module in _imported(path, VENDORS)
        if module.partition(".")[0] in VENDORS
    ]
    assert not wrong, wrong


def test_plugins_are_not_imported_through_their_folder():
    wrong = [
        f"{name_of(path)} imports {module}"
        for path in python_files(*CODE, "tests", "benchmarks", "examples")
        for module in _imported(path, ("backends",))
        if module.partition(".")[0] == "backends"
    ]
    assert not wrong, wrong


def test_contracts_cover_every_package():
    """A package or plug-in that is new has to appear in the contracts that concern it."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    linter = config["tool"]["importlinter"]
    contracts = {c["id"]: c for c in linter["contracts"]}
    plugins = {p.name for p in (ROOT / "backends").iterdir() if (p / "__init__.py").exists()}
    apps = {p.name for p in (ROOT / "apps").iterdir() if (p / "__init__.py").exists()}
    assert plugins | apps <= set(linter["root_packages"])
    assert apps == set(re.findall(r"ggsched_\w+", " ".join(contracts["rings"]["layers"])))
    assert apps <= set(contracts["plug-ins-not-named"]["source_modules"])
    assert plugins <= set(contracts["plug-ins-see-the-contract"]["source_modules"])
    assert plugins <= set(contracts["plug-ins-not-named"]["forbidden_modules"])
    assert {"ggsched"} | plugins | apps <= set(contracts["no-cycles"]["ancestors"])
    packaged = config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {f"backends/{name}" for name in plugins} <= set(packaged)
    assert {f"apps/{name}" for name in apps} <= set(packaged)
    there = {p.name for p in (ROOT / "ggsched").iterdir() if (p / "__init__.py").exists()}
    assert {f"ggsched.{name}" for name in there & CHECKERS} <= set(
        contracts["executor-and-checker-know-no-passes"]["source_modules"]
    )


def test_every_file_of_a_package_comes_with_the_wheel():
    """It holds what the packages' folders do, but for what git would ignore (``build/``)."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("no checkout")
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packaged = config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    call = {"cwd": ROOT, "capture_output": True, "text": True, "check": False}
    tracked = subprocess.run([git, "ls-files", *packaged], **call).stdout
    assert "ggsched/data/addition-moe.gguf" in tracked.splitlines()
    ignored = subprocess.run([git, "check-ignore", "--no-index", "--stdin"], input=tracked, **call)
    assert ignored.stdout == ""
    assert ignored.returncode == 1, ignored.stderr
