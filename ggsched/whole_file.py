"""Files that others see whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, for this user only; what is there stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        make_folder(folder.parent) if folder.parent != folder else None
        folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, data: Any) -> None:
    """Write bytes to a file, in a folder that is made, and put it in its place in one step.

    Other processes see what was there before or all of the new file; nothing is left behind if
    writing fails. After a crash of the machine it may be damaged: nothing waits for the disk.

    Args:
        path: The file. It, and folders that are made for it, are readable by this user only.
        data: Bytes, or an array of them.

    Raises:
        OSError: it cannot be written.
    """
    make_folder(path.parent)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.remove(partial)
        raise
