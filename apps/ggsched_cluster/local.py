"""Machines that are processes of this host, to try plans over several without a cluster."""

import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from os import environ

from ggsched.errors import BackendUnavailable
from ggsched_cluster.members import START_S, Start

HOST = "127.0.0.1"


class LocalMember:
    """A worker in a process of this host.

    Args:
        name: Name of the machine.
        token: Of the session.
        variables: Of the environment, beside those of this process.
    """

    def __init__(self, name: str, token: bytes, variables: Mapping[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ggsched_cluster.worker", HOST],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**environ, **variables},
            start_new_session=True,  # the signals of a terminal are for the driver
        )
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as ``listen`` finds
            self.process.stdin.write(token.hex().encode())
            self.process.stdin.flush()
        self.address = ""

    def listen(self) -> None:
        """Wait for the worker's address.

        Raises:
            BackendUnavailable: it ended instead, and has said why on stderr; or it does not listen.
        """
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], START_S)[0]:
            what = f"the worker does not listen after {START_S:g} s"
            raise BackendUnavailable(what, where=self.name, hint="look at the load of the machine")
        self.address = self.process.stdout.readline().decode().strip()
        if not self.address:
            code = self.process.wait()
            raise BackendUnavailable("the worker ended", where=self.name, why=f"exit code {code}")

    def why_gone(self) -> str:
        """Return the exit code of a process that has ended."""
        code = self.process.poll()
        return "" if code is None else f"its process ended with {code}"

    def end(self, timeout_s: float) -> None:
        """Wait for the process, and kill it after a time."""
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # what a process that has ended did not read
                    pipe.close()


def local_start(
    names: Sequence[str],
    variables: Mapping[str, str] | None = None,
    own: Mapping[str, Mapping[str, str]] | None = None,
) -> Start:
    """Return what starts a process for each machine.

    Args:
        names: Names of the machines.
        variables: Of the workers' environment.
        own: Of the environment of single workers, by name.
    """

    def start(token: bytes) -> list[LocalMember]:
        shared, single = variables or {}, own or {}
        members: list[LocalMember] = []
        try:
            # What was started before a start fails is in the list, too.
            members.extend(LocalMember(n, token, {**shared, **single.get(n, {})}) for n in names)
            for member in members:
                member.listen()
        except BaseException:
            for member in members:
                member.process.kill()
                member.end(0)
            raise
        return members

    return Start("local", start, HOST)
