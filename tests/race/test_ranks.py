"""Ranks of a distributed program: one verdict, and collectives that differ between them."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from ggsched.cli.main import main
from ggsched.trace.schema import FORMAT


def trace(rank, calls, *, groups=None, name="prog.py"):
    """Return the trace of a rank: (name of a collective, bytes), or with the group before it."""
    counts, collectives = {}, []
    for call in calls:
        group, what, nbytes = call if len(call) == 3 else ("0", *call)
        number = counts[group] = counts.get(group, -1) + 1
        collectives.append({"of": group, "number": number, "name": what, "nbytes": nbytes, "at": 0})
    actors = [{"id": 0, "name": "host", "kind": "host"}]
    header = {"format": FORMAT, "name": name, "actors": actors, "events": "latest"}
    header |= {"sites": [[["train.py", 7, "step"]]], "rank": rank, "collectives": collectives}
    return msgspec.json.encode({**header, "groups": groups or {"0": [0, 1]}}) + b"\n"


REDUCE, GATHER = ("allreduce_", 64), ("allgather_", 64)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ([REDUCE, GATHER], [REDUCE, GATHER], ""),
        ([REDUCE, GATHER], [GATHER, REDUCE], "collective 1 of group '0' differs"),
        ([REDUCE, GATHER], [REDUCE], "rank 1 calls none"),
        ([REDUCE], [("allreduce_", 32)], "rank 1 calls allreduce_ of 32 bytes at train.py:7"),
        ([REDUCE, ("of one", "reduce_", 8)], [REDUCE], ""),
        ([REDUCE, ("both", "reduce_", 8)], [REDUCE], "collective 1 of group 'both' differs"),
    ],
)
def test_ranks_call_the_same_collectives_of_their_groups(first, second, said, tmp_path, capsys):
    groups = {"0": [0, 1], "of one": [0], "both": [0, 1]}
    files = [str(tmp_path / f"t-{rank}.jsonl") for rank in (0, 1)]
    for rank, calls in enumerate((first, second)):
        with open(files[rank], "wb") as file:
            file.write(trace(rank, calls, groups=groups))
    assert main(["race", *files]) == (1 if said else 0)
    assert said in " ".join(capsys.readouterr().out.split())


def test_traces_of_different_programs_are_refused(tmp_path, capsys):
    files = [tmp_path / f"{rank}.jsonl" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_bytes(trace(rank, [REDUCE], name=f"prog{rank}.py"))
    assert main(["race", *map(str, files)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "different programs" in line
    assert "prog0.py and prog1.py" in line


@pytest.mark.parametrize("option", [["-o", "x.jsonl"], ["--advice"], ["--cupti"]])
def test_options_that_mean_nothing_for_traces_of_ranks_are_refused(option, tmp_path, capsys):
    files = [str(tmp_path / f"{rank}.jsonl") for rank in (0, 1)]
    for rank, file in enumerate(files):
        with open(file, "wb") as out:
            out.write(trace(rank, [REDUCE]))
    given = [o.replace("x.jsonl", str(tmp_path / "x.jsonl")) for o in option]
    assert main(["race", *given, *files]) == 2
    assert f"{option[0]} means nothing for a trace" in capsys.readouterr().err


def test_two_traces_of_one_rank_are_refused(tmp_path, capsys):
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for file in files:
        file.write_bytes(trace(1, [REDUCE]))
    assert main(["race", *map(str, files)]) == 2
    assert "two traces are of rank 1" in capsys.readouterr().err


PROGRAM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("nccl", init_method="file://" + sys.argv[1], rank=int(os.environ["RANK"]),
                        world_size=2)
x = torch.ones(8, device="cuda")
work = dist.all_reduce(x, async_op=True)
if "late" not in sys.argv:
    work.wait()
x.mul_(2)
work.wait()
dist.broadcast(x, 0)
dist.destroy_process_group()
"""


def test_ranks_of_a_program_get_one_verdict(tmp_path, capsys):
    """Both race alike, so that the finding stands there once; their collectives agree."""
    torch = pytest.importorskip("torch", reason="PyTorch is in the extra 'torch'")
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("PyTorch was built without gloo")
    (tmp_path / "prog.py").write_text(PROGRAM, encoding="utf-8")
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    out = str(tmp_path / "t-{rank}.jsonl")
    command = [sys.executable, "-m", "ggsched", "race", "--simulate", "-o", out]
    command += [str(tmp_path / "prog.py"), str(tmp_path / "store"), "late"]
    ranks = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in (0, 1)
    ]
    assert [rank.wait(200) for rank in ranks] == [1, 1]
    assert main(["race", "--json", *(str(tmp_path / f"t-{rank}.jsonl") for rank in (0, 1))]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["what"].startswith("ranks 0, 1: read after write")
