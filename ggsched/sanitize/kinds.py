"""Groups of command types, made once: ``isinstance`` with ``A | B`` would make them each time."""

from typing import Final

from ggsched.plan.command import Copy, CopyRows, Download, Upload

Transferring = Upload | Download | Copy | CopyRows

TRANSFERS: Final = (Upload, Download, Copy, CopyRows)
