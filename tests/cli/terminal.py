"""A small terminal for tests: what people see of what a command writes."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios

_DROPPED = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
_SEQUENCE = re.compile(rb"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class Screen:
    """Rows of text with a cursor; knows what live displays use."""

    def __init__(self, width):
        self.width = width
        self.rows, self.row, self.column = [""], 0, 0
        self.unknown = []

    def feed(self, written):
        """Take bytes as a terminal does."""
        at = 0
        for found in _SEQUENCE.finditer(written):
            self._text(written[at : found.start()].decode())
            self._act(found)
            at = found.end()
        self._text(written[at:].decode())

    @property
    def lines(self):
        """The rows, without empty ones at the end."""
        rows = [row.rstrip() for row in self.rows]
        while rows and not rows[-1]:
            rows.pop()
        return rows

    def _act(self, found):
        number, letter = (found[1] or b"").decode(), (found[2] or b"").decode()
        count = int(number) if number.isdigit() else 1
        match letter:
            case "A":
                self.row = max(0, self.row - count)
            case "K":
                self.rows[self.row] = "" if number == "2" else self.rows[self.row][: self.column]
            case "m" | "h" | "l":  # colours, cursor on and off
                pass
            case _:
                self.unknown.append(found[0])

    def _text(self, text):
        for character in text:
            if character == "\r":
                self.column = 0
            elif character == "\n":
                self._down()
            elif character < " ":
                self.unknown.append(character)
            else:
                if self.column == self.width:
                    self.column = 0
                    self._down()
                row = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = row[: self.column] + character + row[self.column + 1 :]
                self.column += 1

    def _down(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")


_CONTROLLED = """
import os, runpy
os.close(os.open(os.ttyname(0), os.O_RDWR))
runpy.run_module("ggsched", run_name="__main__", alter_sys=True)
"""
"""Makes its terminal the one that Ctrl-C comes from."""


class Dialogue:
    """A command in a terminal, to which a test types and whose text it awaits."""

    def __init__(self, *arguments, width=80, **changes):
        self.fd, self.process = started(arguments, width, ["-c", _CONTROLLED], **changes)
        self.written, self._seen = b"", 0

    def until(self, text, timeout_s=60):
        """Wait until a text is written behind what was awaited before."""
        while (found := self.written.find(text.encode(), self._seen)) < 0:
            try:
                part = self._part(timeout_s)
            except OSError:  # the other end is closed
                part = b""
            if not part:
                self.process.kill()
                self.ends()
                raise AssertionError(f"no {text!r} in {self.written[self._seen :]!r}")
            self.written += part
        self._seen = found + len(text.encode())
        return self

    def goes_on(self):
        """Wait until anything is written behind what was awaited before."""
        if len(self.written) == self._seen:
            self.written += self._part(60)
        assert len(self.written) > self._seen, "nothing is written"
        return self

    def shows_text(self, nbytes=8):
        """Wait until that much is written behind live lines, which hide the cursor."""
        while b"\x1b[?25l" in (parts := self.written.rpartition(b"\x1b[?25h"))[2] or (
            not parts[1] or len(parts[2].rpartition(b"\x1b[2K")[2]) < nbytes
        ):
            self._seen = len(self.written)
            self.goes_on()
        return self

    def _part(self, timeout_s):
        ready, _, _ = select.select([self.fd], [], [], timeout_s)
        return os.read(self.fd, 1 << 16) if ready else b""

    def types(self, text):
        """Type characters."""
        os.write(self.fd, text.encode())
        return self

    def interrupts(self):
        """Type Ctrl-C at a prompt until the command ends.

        Python's readline notices a signal between its prompt and its wait for a key with the next
        key only, so one Ctrl-C is not enough for a program that types as soon as it is asked.
        """
        for _ in range(60):
            self.types("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(1)
                break
        return self.ends()

    def ends(self, timeout_s=60):
        """Wait for the end; return the exit code and the rows of the screen."""
        with contextlib.suppress(OSError):  # the other end is closed
            while part := self._part(timeout_s):
                self.written += part
        os.close(self.fd)
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the command goes on behind {self.written!r}") from None
        screen = Screen(80)
        screen.feed(self.written)
        return code, screen.lines


def started(arguments, width=80, program=None, stdout=None, typed=b"", **changes):
    """Start a command whose stdout and stderr are one terminal; return its end and the process."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    os.write(ours, typed)
    environ = {k: v for k, v in os.environ.items() if k not in _DROPPED}
    process = subprocess.Popen(
        [sys.executable, *(program or ["-m", "ggsched"]), *arguments],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=environ | {"TERM": "xterm-256color", **changes},
        start_new_session=True,
    )
    os.close(theirs)
    return ours, process


def rest_of(fd):
    """Return all that is still written, and close our end."""
    written = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(fd, 1 << 16):
            written += part
    os.close(fd)
    return written


def in_terminal(
    *arguments, width=80, stdout=None, timeout_s=60, program=None, typed=b"", **changes
):
    """Run a command whose stdout and stderr are one terminal; return exit code and screen.

    Args:
        *arguments: Of ``ggsched``.
        width: Columns.
        stdout: A file for stdout instead of the terminal.
        timeout_s: For the command.
        program: Arguments of Python instead of ``-m ggsched``.
        typed: What is typed before it starts.
        **changes: Environment variables.
    """
    ours, process = started(arguments, width, program, stdout, typed, **changes)
    written = rest_of(ours)
    code = process.wait(timeout_s)
    screen = Screen(width)
    screen.feed(written)
    screen.written = written
    return code, screen


_MANY = """
import json, os, sys
from ggsched.cli.main import main
lines, codes = os.fdopen(int(sys.argv[1])), os.fdopen(int(sys.argv[2]), "w")
for line in lines:
    folder, arguments = json.loads(line)
    os.chdir(folder)
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    print(code, file=codes, flush=True)
"""


class CommandsInTerminal:
    """One process, with a terminal, that runs command after command.

    A process of its own for each costs half a second.
    """

    def __init__(self):
        given, self._lines = os.pipe()
        codes, theirs_codes = os.pipe()
        self._codes = os.fdopen(codes)
        self._fd, theirs = pty.openpty()
        environ = {k: v for k, v in os.environ.items() if k not in _DROPPED}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MANY, str(given), str(theirs_codes)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ | {"TERM": "xterm-256color"},
            pass_fds=(given, theirs_codes),
            start_new_session=True,
        )
        for fd in (given, theirs, theirs_codes):
            os.close(fd)

    def run(self, arguments, folder, width, timeout_s=60):
        """Run a command; return its exit code and the screen."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        os.write(self._lines, json.dumps([str(folder), arguments]).encode() + b"\n")
        written = b""
        while True:
            ready, _, _ = select.select([self._fd, self._codes], [], [], timeout_s)
            if self._fd in ready:
                written += os.read(self._fd, 1 << 16)
            elif ready:  # and all that it wrote before was read
                break
            else:
                self.close()
                raise AssertionError(f"{arguments} goes on behind {written!r}")
        screen = Screen(width)
        screen.feed(written)
        return int(self._codes.readline()), screen

    def close(self):
        """End the process."""
        os.close(self._lines)
        self._codes.close()
        self._process.kill()
        self._process.wait()
        os.close(self._fd)
