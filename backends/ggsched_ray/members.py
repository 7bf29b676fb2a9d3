"""Workers as actors: one for each node, held there, and watched by Ray."""

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ggsched.errors import BackendUnavailable
from ggsched_cluster.link import Link
from ggsched_cluster.members import START_S, Member
from ggsched_cluster.worker import Warnings, Worker
from ggsched_ray.connection import connect, first_line

_LOG: Final = logging.getLogger("ggsched")
ACTOR_VARIABLES: Final = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
}
"""Of the processes of actors: versions of Ray before 2026 hide GPUs from actors that reserve none.
The oldest ones, 2.40 for example, know the second variable only."""


class WorkerActor:
    """A worker in the process of an actor. It is given a token and nothing else.

    The worker has a thread of its own, so that Ray can call the actor meanwhile.
    """

    def __init__(self, token: bytes) -> None:
        self._token, self._address, self._error = token, "", ""
        self._is_listening = threading.Event()
        self._thread = threading.Thread(target=self._work, name="ggsched worker", daemon=True)
        self._thread.start()

    def listen(self) -> tuple[str, int]:
        """Return the address of the worker, and the process that it is in."""
        self._is_listening.wait(START_S)
        if not self._address:
            raise RuntimeError(self._error or "the worker does not listen")
        return self._address, os.getpid()

    def serve(self) -> None:
        """Return when the worker has ended."""
        self._thread.join()

    def _work(self) -> None:
        try:
            link = Link(get_node_ip_address(), self._token)
        except BackendUnavailable as error:
            self._error = error.one_line()
            self._is_listening.set()
            return
        self._address = link.address
        self._is_listening.set()
        Worker(link, warnings=Warnings()).serve()


class RayMember:
    """A worker on a node.

    Args:
        name: Name of the node.
    """

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self._actor = name, actor
        self.address, self.pid = "", 0
        self._ended: Any = None
        self._why = ""

    def listen(self) -> None:
        """Wait for the address of the worker.

        Raises:
            BackendUnavailable: it cannot be started there.
        """
        try:
            self.address, self.pid = ray.get(self._actor.listen.remote(), timeout=START_S)
        except RayError as error:
            raise BackendUnavailable(
                "no worker could be started",
                where=f"ray://{self.name}",
                why=first_line(error),
                hint=_remedy(error),
            ) from error
        self._ended = self._actor.serve.remote()

    def why_gone(self) -> str:
        """Return what Ray says of an actor that has ended."""
        if not self._why and self._ended is not None:
            done, _ = ray.wait([self._ended], timeout=0)
            if done:
                self._why = self._reason()
        return self._why

    def end(self, timeout_s: float) -> None:
        """Wait for the worker to end, then end the actor."""
        if self._ended is not None:
            ray.wait([self._ended], timeout=timeout_s)
        ray.kill(self._actor, no_restart=True)

    def _reason(self) -> str:
        try:
            ray.get(self._ended)
        except RayError as error:
            return first_line(error)
        return "its worker ended"


def node_address() -> str:
    """Connect to the cluster, and return the address of this node.

    Raises:
        BackendUnavailable: there is no cluster.
    """
    connect(os.environ.get("RAY_ADDRESS") or "auto")
    return str(get_node_ip_address())


def started(token: bytes, names: Sequence[str]) -> list[Member]:
    """Start a worker on each node, or on those that are named.

    Where none is named, a node that cannot start a worker is left out, and the log says why: Ray
    lists a node for some seconds after its end.

    Raises:
        BackendUnavailable: a node that is named is not there or cannot start a worker, or none can.
    """
    nodes = nodes_by_name()
    for name in names:
        if name not in nodes:
            raise BackendUnavailable(
                "no such node", where=f"ray://{name}", hint=f"nodes: {', '.join(nodes)}"
            )
    actor = ray.remote(
        num_cpus=0, max_restarts=0, max_concurrency=2, runtime_env={"env_vars": ACTOR_VARIABLES}
    )(WorkerActor)
    members: list[RayMember] = []
    found: list[Member] = []
    skipped: list[BackendUnavailable] = []
    try:
        for name in names or nodes:
            where = NodeAffinitySchedulingStrategy(nodes[name], soft=False)
            members.append(RayMember(name, actor.options(scheduling_strategy=where).remote(token)))
        for member in members:
            try:
                member.listen()
                found.append(member)
            except BackendUnavailable as error:
                if names:
                    raise
                skipped.append(error)
                member.end(0)
        if not found:
            raise skipped[0]
    except BaseException:
        for member in members:
            member.end(0)
        raise
    for left_out in skipped:
        _LOG.warning("left out: %s", left_out.one_line())
    return found


def nodes_by_name() -> dict[str, str]:
    """Return the ids of the living nodes by name, sorted by name; equal names get a suffix.

    The name is what ``ray start --node-name`` says, else the address of the node.
    """
    alive = sorted((n["NodeName"], n["NodeID"]) for n in ray.nodes() if n["Alive"])
    names = [name for name, _ in alive]
    return {name if names.count(name) == 1 else f"{name}-{node[:6]}": node for name, node in alive}


def _remedy(error: BaseException) -> str:
    """Return what to do about a worker that cannot be started."""
    text = str(error)
    if "ModuleNotFoundError" in text or "ImportError" in text:
        return "ggsched has to be installed on every node: pip install 'ggsched[ray]'"
    if isinstance(error, GetTimeoutError):
        return f"nothing was heard of it for {START_S:g} s: look at the node's load and network"
    return "see whether the node is there: ray status"
