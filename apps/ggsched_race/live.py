"""Check a program while it runs, and stop at the first finding.

The journal is read as it grows. Records stay in the file, and are looked up there for the words of
a finding; what is kept in memory is ``ggsched_race.live_races``, stacks and notes on memory in use.
"""

import os
import signal
import subprocess
from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from ggsched.files.reading import open_regular, read_some
from ggsched.trace.schema import Actor, Entry, Trace
from ggsched_race.call_sites import Stack
from ggsched_race.live_races import LiveRaces
from ggsched_race.report import RaceFinding, RaceReport, Words
from ggsched_race.streamed import Lines
from ggsched_race.trace_notes import Note, Notes

_POLL_S: Final = 0.05
_END_S: Final = 10.0
"""How long a program that is stopped may take to end."""
_BLOCK: Final = 1 << 20


class LiveCheck:
    """Checks a journal that is being written.

    Args:
        journal: Descriptor of the file, at its beginning.
        suppressions: Patterns of frames of findings to leave out.

    Attributes:
        finding: The first finding.
    """

    def __init__(self, journal: int, suppressions: Sequence[str] = ()) -> None:
        self._file, self._patterns = journal, suppressions
        self._read = partial(_line_of, journal)
        self._rest, self._at = b"", 0
        self._places = array("q")
        self.races = LiveRaces()
        self._entry = msgspec.json.Decoder(Entry)
        self._note = msgspec.json.Decoder(Note)
        self._stacks: list[Stack] = []
        self._notices: list[str] = []
        self._memories: dict[int, Note] = {}
        self._name, self._suppressed = "program", 0
        self.finding: RaceFinding | None = None

    def read(self) -> None:
        """Check what has been written since the last time, up to the first finding."""
        while self.finding is None and (block := read_some(self._file, _BLOCK)):
            *lines, self._rest = (self._rest + block).split(b"\n")
            for line in lines:
                if self.finding is None:
                    self._line(line)
                self._at += len(line) + 1

    def _line(self, line: bytes) -> None:
        if line.startswith(b'{"type"'):
            self._places.append(self._at)
            if line.startswith(b'{"type":"alloc"'):
                note = self._note.decode(line)
                self._memories[note.memory] = note
            for clash in self.races.add(self._entry.decode(line)):
                self._found(self._words().finding(self.races.finding(clash, self._trace())))
            return
        found = msgspec.json.decode(line) if line else {}
        if "new_actor" in found:
            self.races.add_actor(msgspec.convert(found["new_actor"], Actor))
        if "site" in found:
            self._stacks.append(msgspec.convert(found["frames"], Stack))
        if "gone" in found:
            self.races.forget(found["gone"])
            self._memories.pop(found["gone"], None)
        if "event_gone" in found:
            self.races.forget_event(found["event_gone"])
        if "notice" in found:
            self._notices.append(found["notice"])
        self._name = found.get("name", self._name)

    def _found(self, finding: RaceFinding) -> None:
        if finding.is_suppressed(self._patterns):
            self._suppressed += 1
        elif self.finding is None:
            self.finding = finding

    def _trace(self) -> Trace:
        entries = Lines(self._read, self._places, self._entry.decode)
        return Trace(self._name, tuple(self.races.actors), entries)  # type: ignore[arg-type]

    def _words(self) -> Words:
        records = Lines(self._read, self._places, self._note.decode)
        notes = Notes(tuple(self._stacks), records, self._memories, tuple(self._notices))
        return Words(self._trace(), notes)

    def report(self, failure: str = "") -> RaceReport:
        """Return the first finding, if there is one, or that races were not found."""
        findings = () if self.finding is None else (self.finding,)
        notices = (*self._notices, "--live stops at the first race, and looks for races only")
        return RaceReport(
            self._name,
            self.races.records,
            findings,
            self._suppressed,
            failure=failure,
            notices=notices,
        )


def _line_of(file: int, start: int) -> bytes:
    """Return the line that begins at a byte of a file."""
    line = b""
    while b"\n" not in line:
        line += os.pread(file, 1 << 12, start + len(line))
    return line.partition(b"\n")[0]


def follow(
    program: "subprocess.Popen[bytes]", journal: Path, suppressions: Sequence[str]
) -> LiveCheck | None:
    """Check a program until it ends, and end it at the first finding.

    Returns:
        The check; None of a program that has ended before it was recorded.
    """
    while not journal.exists():
        if _has_ended(program) and not journal.exists():
            return None
    with open_regular(journal) as file:
        check = LiveCheck(file, suppressions)
        is_last = False
        try:
            while check.finding is None and not is_last:
                is_last = _has_ended(program)
                check.read()
        finally:  # also of a journal that cannot be read
            _end(program)
    return check


def _end(program: "subprocess.Popen[bytes]") -> None:
    program.send_signal(signal.SIGINT)  # nothing happens to one that has ended
    try:
        program.wait(_END_S)
    except subprocess.TimeoutExpired:
        program.kill()
        program.wait()


def _has_ended(program: "subprocess.Popen[bytes]") -> bool:
    try:
        program.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True
