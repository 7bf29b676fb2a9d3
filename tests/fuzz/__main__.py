"""Feed damaged input to each reader for some time and report what is neither success nor refusal.

    python -m tests.fuzz                          # every reader, 20 s of processor time each
    python -m tests.fuzz --seconds 600 gguf npy   # two of them, ten minutes each
    python -m tests.fuzz --seed 7 -o findings     # other mutants; keep what fails in a folder

Each reader runs in a process of its own: a signal or a hang is a finding too.
"""

import argparse
import logging
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Final

from ggsched.errors import GgschedError
from ggsched.printable import printable
from tests.fuzz.mutation import mutant
from tests.fuzz.readers import READERS, Reader, corpus_of, fresh, write

INPUT_S: Final = 10
"""Processor time that one input may take."""
STALLED_S: Final = 120.0
"""Seconds without a new input after which a reader hangs."""
MEMORY_NBYTES: Final = 6 << 30
MAX_MESSAGE: Final = 2000
ROOT: Final = Path(__file__).parents[2]


def say(text: str) -> None:
    """Write a line at once: a reader may end the process."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def finding_of(reader: Reader, folder: Path) -> str:
    """Return what is wrong with how a reader takes an input, or "".

    The first line distinguishes findings: the exception, and the innermost line of ggsched.
    """
    try:
        reader.use(folder)
    except GgschedError as error:
        text = str(error)
        if printable(text) == text and "\n" not in text and len(text) <= MAX_MESSAGE:
            return ""
        return f"{type(error).__name__}: {len(text)} letters: {text[:200]!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # panics of Rust are none of Exception
        steps = traceback.extract_tb(error.__traceback__)
        own = [s for s in steps if "ggsched" in Path(s.filename).parts] or steps
        place = f"{Path(own[-1].filename).name}:{own[-1].lineno}"
        return f"{type(error).__name__} at {place}\n{traceback.format_exc(limit=-6)}"
    return ""


def search(reader: Reader, seconds: float, seed: int, folder: Path, out: Path | None) -> int:
    """Report findings of a reader on stdout, each place once; return how many there are."""
    corpus, rng = corpus_of(reader), random.Random(f"{reader.name} {seed}")
    found: set[str] = set()
    count, end = 0, time.process_time() + seconds
    while time.process_time() < end:
        count += 1
        write(fresh(folder), mutant(corpus, rng))
        signal.setitimer(signal.ITIMER_PROF, INPUT_S)
        finding = finding_of(reader, folder)
        signal.setitimer(signal.ITIMER_PROF, 0)
        kind = finding.partition("\n")[0]
        if kind and kind not in found:
            found.add(kind)
            say(f"{reader.name}: input {count}: {finding}")
            if out is not None:
                kept = out / f"{reader.name}-{seed}-{count}".replace(" ", "-")
                shutil.copytree(folder, kept, dirs_exist_ok=True)
    say(f"{reader.name}: {count} inputs, {len(found)} findings")
    return len(found)


def _is_late(number: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"an input takes more than {INPUT_S} s")


def child(name: str, seconds: float, seed: int, folder: Path, out: Path | None) -> int:
    """Search with one reader, in this process."""
    (reader,) = (r for r in READERS if r.name == name)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))
    signal.signal(signal.SIGPROF, _is_late)
    logging.disable()
    warnings.simplefilter("ignore")
    return int(search(reader, seconds, seed, folder, out) > 0)


def code_of(process: subprocess.Popen[bytes], folder: Path, stalled_s: float = STALLED_S) -> int:
    """Return the exit code of a child; -1, and end it, if it writes no input for a while.

    Its time is counted in processor time, which says nothing of how long it takes beside others.
    """
    seen = -1
    while True:
        try:
            return process.wait(stalled_s)
        except subprocess.TimeoutExpired:
            newest = folder.stat().st_mtime_ns
            if newest == seen:
                process.kill()
                process.wait()
                return -1
            seen = newest


def main() -> int:
    """Search with each reader in turn; return 1 if there are findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("readers", nargs="*", metavar="READER", default=[r.name for r in READERS])
    parser.add_argument("--seconds", type=float, default=20.0, help="of processor time, each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="folder for inputs that fail")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
    if given.child is not None:
        return child(given.readers[0], given.seconds, given.seed, given.child, given.output)
    bad = 0
    for name in given.readers:
        with TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.fuzz", name, "--child", folder]
            command += ["--seconds", str(given.seconds), "--seed", str(given.seed)]
            command += [] if given.output is None else ["-o", str(given.output.resolve())]
            code = code_of(subprocess.Popen(command, cwd=ROOT), Path(folder))
            if code not in (0, 1):
                why = "it hangs" if code == -1 else f"exit code {code}"
                say(f"{name}: {why}, with the input of this seed that came last")
                if given.output is not None:
                    shutil.copytree(folder, given.output / f"{name}-crash", dirs_exist_ok=True)
            bad += code != 0
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
