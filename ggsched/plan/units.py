"""Numbers with units, for people."""


def nbytes_text(nbytes: int) -> str:
    """Return a number of bytes with a unit, e.g. ``4.0 KiB``."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def seconds_text(seconds: float) -> str:
    """Return seconds with a unit, e.g. ``1.4 ms`` or ``4 µs``."""
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
