"""Records the programs of ``programs.py`` again, by simulation, into ``tests/data/races``.

    .venv/bin/python -m tests.race.record

One trace for each program and variant; the name of the file says what is expected of it.
"""

from pathlib import Path

from ggsched_race.watch import watch
from tests.race import programs

FOLDER = Path("tests/data/races")


def main():
    FOLDER.mkdir(exist_ok=True)
    for program in (*programs.RACING, *programs.RIGHT):
        for variant in ("broken", "mended") if program in programs.RACING else ("right",):
            name = f"{program.__name__}-{variant}"
            file = FOLDER / f"{name}.jsonl"
            with watch(name, simulate=True, raises=False, trace=file) as watched:
                program(*([variant == "mended"] if variant != "right" else []))
            assert watched.report.is_clean == (variant != "broken"), watched.report.to_text()


if __name__ == "__main__":
    main()
