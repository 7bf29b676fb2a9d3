"""Where a machine takes weights from: its own file, what it kept, or what it is sent."""

import logging
import shutil

import numpy as np
import pytest

from ggsched import Scheduler
from ggsched.config import Settings
from ggsched.files.mapping import map_file
from ggsched.run.release import close_all
from ggsched_cluster.local import local_start
from ggsched_cluster.remote_devices import open_group
from ggsched_cluster.weights import Sources, offer_of
from ggsched_llm.load import load_model
from ggsched_llm.session import Session, SessionOptions
from tests.cluster.kills import VARIABLES
from tests.cluster.test_sessions import alone, homes, model
from tests.cluster.workers import Members
from tests.models.helpers import ORACLE

CPU = Settings(timeout_s=20)


def opened():
    return open_group(Members("a", "b").start, backends=("cpu",), timeout_s=20)


def read_by(store):
    """Bytes by where they came from, of both machines."""
    found = [sizes.get("read", {}) for sizes in store.driver.manage("sizes").values()]
    return {k: sum(f.get(k, 0) for f in found) for k in ("own file", "kept", "sent")}


def test_a_model_is_read_from_the_file_of_the_machine_that_holds_it():
    llama = load_model(ORACLE / "llama-tiny-q8_0.gguf")
    devices = opened()
    try:
        with Session(llama, devices, SessionOptions(n_ctx=32), settings=CPU) as session:
            session.feed([3, 1, 4])
            found = read_by(session.scheduler._store)
    finally:
        close_all(devices)
    assert found["sent"] == found["kept"] == 0
    assert found["own file"] > 10_000


def test_weights_that_were_sent_are_kept(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("GGSCHED_WEIGHT_CACHE", str(tmp_path / "kept"))
    graph, weights, inputs = model(5)
    size = sum(w.nbytes for w in weights.values())
    expected = alone(graph, weights, inputs)

    def session():
        devices = opened()
        try:
            with Scheduler(devices, weights=weights, settings=CPU) as scheduler:
                got = scheduler.run(graph, inputs, homes(5, 2))
                found = read_by(scheduler._store)
        finally:
            close_all(devices)
        for tid, array in expected.items():
            np.testing.assert_allclose(got[tid], array, rtol=1e-5, atol=1e-6)
        return found

    assert session() == {"own file": 0, "kept": 0, "sent": size}
    assert session() == {"own file": 0, "kept": size, "sent": 0}
    one = next(iter((tmp_path / "kept").iterdir()))
    data = bytearray(one.read_bytes())
    data[5] ^= 1
    one.write_bytes(data)
    with caplog.at_level(logging.WARNING, "ggsched"):
        assert session() == {"own file": 0, "kept": size - len(data), "sent": len(data)}
    assert "damaged: the weight is sent again" in caplog.text
    assert session()["kept"] == size


@pytest.mark.parametrize("harm", ["", "other bytes", "another length", "no file"])
def test_only_a_file_with_the_same_bytes_is_used(harm, tmp_path, caplog):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "model").write_bytes(bytes(range(256)) * 8)
    data = map_file(str(here / "model"))
    offer, _ = offer_of(data[64:192].view(np.float32).reshape(4, 8), with_digest=False)
    shutil.move(here / "model", there / "model")
    copy = bytearray((there / "model").read_bytes())
    if harm == "other bytes":
        copy[100] ^= 1
    (there / "model").write_bytes(copy[:-1] if harm == "another length" else copy)
    if harm == "no file":
        (there / "model").unlink()
    sources = Sources(models=str(there))
    with caplog.at_level(logging.WARNING, "ggsched"):
        found = sources.find("w", offer)
    assert (found is None) == bool(harm)
    assert ("another checksum" in caplog.text) == (harm == "other bytes")
    if found is not None:
        np.testing.assert_array_equal(found.view(np.uint8).reshape(-1), data[64:192])
        assert sources.nbytes == {"own file": 128}


def test_what_a_machine_warns_of_is_said_by_the_driver(tmp_path, caplog, capfd):
    (tmp_path / "file").touch()
    kept = {**VARIABLES, "GGSCHED_WEIGHT_CACHE": str(tmp_path / "file" / "kept")}
    graph, weights, inputs = model(2)
    devices = open_group(local_start(["a"], kept), backends=("cpu",), timeout_s=20)
    try:
        with Scheduler(devices, weights=weights, settings=CPU) as scheduler:
            scheduler.run(graph, inputs)
    finally:
        close_all(devices)
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [w for w in warned if w.startswith("local://a: ")] == warned
    assert sum("a weight is not kept: " in w for w in warned) == 2
    said = [line for line in capfd.readouterr().err.splitlines() if "not kept" in line]
    assert all("local://a: " in line for line in said)  # none by the machine's process itself
