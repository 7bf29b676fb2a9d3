"""Draw the pictures of the gallery as SVG: ``make gallery``, or ``python docs/images/gallery.py``.

Plans are made for recorded machines (``tests/data/topologies``), and times are predicted, so that
no device is needed. A picture is drawn from the data of a page of ``ggsched plan --html``; that of
the race from a report of the sanitizer.
"""

import json
import re
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from html import escape
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from ggsched import GraphBuilder, probe
from ggsched.cli.main import main
from ggsched.passes import Constraints, make_plan
from ggsched.plan.bundle import Plan
from ggsched.plan.command import Record, Wait
from ggsched.report.data import page_data
from ggsched.report.predicted_timeline import described
from ggsched.sanitize import check_plan
from ggsched.topology.codec import topology_from_text
from ggsched.topology.cost import guessed_rates
from ggsched.units import nbytes_text, seconds_text
from ggsched_commands.expected_trace import expected_timeline
from ggsched_testing.plan_mutants import drop_waits
from ggsched_testing.sim import SimConfig, SimWorld

Data = dict[str, Any]

ROOT: Final = Path(__file__).resolve().parents[2]
MACHINES: Final = ROOT / "tests" / "data" / "topologies"
COLOURS: Final = {
    "launch": "#3b82c4",
    "copy": "#d97b29",
    "upload": "#8a63b8",
    "download": "#3a9a6a",
}
WIDTH, LEFT, ROW, BAR, TICKS = 960, 120, 34, 20, 5
RACE: Final = "#c4313b"
DATA: Final = re.compile(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', re.S)


def data_of_plan(*options: str) -> Data:
    """Return the data of the page that ``ggsched plan demo`` writes with these options."""
    with TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        with redirect_stdout(StringIO()):
            code = main(["plan", "demo", *options, "--html", str(page)])
        if code:
            raise SystemExit(f"ggsched plan demo {' '.join(options)}: exit code {code}")
        found = re.search(
            r'<script[^>]*type="application/json"[^>]*>(.*?)</script>',
            page.read_text("utf-8"),
            re.S,
        )
    if found is None:
        raise SystemExit("the page has no data")
    data: Data = json.loads(found[1])
    return data


def pipeline() -> str:
    """Four micro-batches go through two GPUs, three layers each."""
    g = GraphBuilder("pipeline")
    weights = [g.weight(f"blk.{layer}.w", (4096, 4096)) for layer in range(6)]
    pins, outputs = {}, []
    for batch in range(4):
        value = g.input(f"x@{batch}", (512, 4096))
        for layer, weight in enumerate(weights):
            pins[len(pins)] = layer // 3
            value = g.mul_mat(weight, value, name=f"blk.{layer}.out of micro-batch {batch}")
        outputs.append(value)
    graph = g.build(*outputs)
    topology = topology_from_text((MACHINES / "h200-two-gpus.json").read_text("utf-8"))
    plan = make_plan(graph, topology, Constraints(pins=pins))
    traced = described(graph, plan, guessed_rates(topology))
    return timeline_picture(page_data(expected_timeline(plan, traced.expected)))


def offload() -> str:
    """A decoding step with experts in host memory."""
    machine = str(MACHINES / "h200-cpu.json")
    return timeline_picture(
        data_of_plan("--topology", machine, "--n-cpu-moe", "2", "--streams", "2")
    )


def shared_layers() -> str:
    """A step of two GPUs that share each layer."""
    machine = str(MACHINES / "h200-two-gpus.json")
    return timeline_picture(data_of_plan("--topology", machine, "-sm", "tensor"))


def memory() -> str:
    """The largest arena of a prompt's micro-batch: time to the right, addresses upwards."""
    machine = str(MACHINES / "h200.json")
    data = data_of_plan("--topology", machine, "--n-tokens", "16")
    blocks, plan = data["blocks"], data["plans"][0]
    arena = max((a for a in plan["arenas"] if a["kind"] == "compute"), key=lambda a: a["bytes"])
    rows = zip(
        *(blocks[key] for key in ("arena", "start", "end", "offset", "bytes", "label")), strict=True
    )
    own = [row for row in rows if row[0] == arena["id"]]
    begin, end = min(row[1] for row in own), max(row[2] for row in own)
    height, across = 260, (WIDTH - LEFT - 10) / (end - begin)
    parts = [text(6, 20, f"{arena['device']}, {nbytes_text(arena['bytes'])}")]
    for _, start, last, offset, nbytes, label in own:
        hue = label * 137.508 % 360
        y = 10 + height * (1 - (offset + nbytes) / arena["bytes"])
        shape = box(
            LEFT + (start - begin) * across,
            y,
            max(1.0, (last - start) * across),
            max(1.0, height * nbytes / arena["bytes"]),
            f"hsl({hue:.0f} 55% 66%)",
        )
        parts.append(titled(shape, f"{data['texts'][label]}: {nbytes_text(nbytes)}"))
    return svg(height + 40, [*parts, *axis(height + 26, end - begin)])


def race() -> str:
    """The commands of a plan without one of its waits, and what the sanitizer finds."""
    g = GraphBuilder("two devices")
    x = g.input("x", (2, 4))
    y = g.mul_mat(g.weight("v", (4, 4)), g.silu(g.mul_mat(g.weight("w", (4, 4)), x)))
    topology = probe(SimWorld([SimConfig(), SimConfig()]).open_all())
    plan = make_plan(g.build(y), topology, Constraints(homes={"w": 0, "v": 1}))
    ((what, broken),) = drop_waits(plan)
    lines = check_plan(broken).to_text().splitlines()
    racing = {int(n) for n in re.findall(r"^  c(\d+) q\d", "\n".join(lines[1:5]), re.M)}
    parts, place = commands(broken, racing)
    top = ROW * len(broken.devices) + 40
    if len(racing) == 2:
        (x1, y1), (x2, y2) = (place[number] for number in sorted(racing))
        parts.append(
            f'<line x1="{x1}" y1="{y1 + BAR / 2}" x2="{x2}" y2="{y2 - BAR / 2}" stroke="{RACE}" '
            'stroke-width="2" stroke-dasharray="6 4"/>'
        )
    parts.append(text(6, top, f"{what}, then ggsched check:", weight="bold"))
    parts += [text(6, top + 20 * i, line) for i, line in enumerate(lines[1:5], 1)]
    return svg(top + 20 * 5, parts)


def commands(plan: Plan, racing: set[int]) -> tuple[list[str], dict[int, tuple[float, float]]]:
    """Return a box for each command of a plan, and the middles of the boxes."""
    parts = [text(6, device * ROW + 24, facts.name) for device, facts in enumerate(plan.devices)]
    place, step = {}, (WIDTH - LEFT - 10) / len(plan.commands)
    for i, command in enumerate(plan.commands):
        device = plan.streams.streams[command.stream].device
        x, y = LEFT + i * step, device * ROW + 10.0
        kind = re.sub(r"\B(?=[A-Z])", " ", type(command).__name__).lower()
        tone = "#8b93a0" if isinstance(command, (Wait, Record)) else COLOURS.get(kind, "#8b93a0")
        parts.append(box(x, y, step - 4, BAR, RACE if command.id in racing else tone))
        parts.append(text(x + 4, y + 14, f"c{command.id} {kind}", fill="white", size=11))
        place[command.id] = (x + step / 2, y + BAR / 2)
    return parts, place


def timeline_picture(data: Data) -> str:
    """Return what takes time on devices, a row for each stream."""
    columns = data["spans"]
    rows = zip(*(columns[key] for key in ("track", "kind", "start", "end", "label")), strict=True)
    spans = [row for row in rows if row[1] in COLOURS and row[3] > row[2]]
    used = sorted({row[0] for row in spans}, key=lambda t: data["tracks"][t]["device"])
    place = {track: i for i, track in enumerate(used)}
    last = max(row[3] for row in spans)
    scale = (WIDTH - LEFT - 10) / last
    parts = [
        text(6, row * ROW + 24, "{device} {name}".format(**data["tracks"][track]))
        for track, row in place.items()
    ]
    for track, kind, start, end, label in spans:
        shape = box(
            LEFT + start * scale,
            place[track] * ROW + 10,
            max(1.0, (end - start) * scale),
            BAR,
            COLOURS[kind],
        )
        parts.append(titled(shape, data["texts"][label]))
    base = ROW * len(used) + 24
    for i, (kind, colour) in enumerate(COLOURS.items()):
        parts += [
            box(LEFT + 110 * i, base + 12, 12, 12, colour),
            text(LEFT + 110 * i + 18, base + 22, kind),
        ]
    return svg(base + 36, [*parts, *axis(base, last)])


def axis(y: float, length_us: float) -> list[str]:
    """Return the marks of a time axis."""
    return [
        text(
            round(LEFT + (WIDTH - LEFT - 10) * i / TICKS),
            y,
            seconds_text(1e-6 * length_us * i / TICKS),
            anchor="middle" if i < TICKS else "end",
        )
        for i in range(TICKS + 1)
    ]


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="{fill}" stroke="white" stroke-width="0.5"/>'
    )


def titled(shape: str, title: str) -> str:
    """Return a shape that shows a title under the pointer."""
    return shape.replace("/>", f"><title>{escape(title)}</title></rect>")


def text(
    x: float,
    y: float,
    words: str,
    *,
    anchor: str = "start",
    fill: str = "#1b1f27",
    size: int = 12,
    weight: str = "normal",
) -> str:
    """Return a text."""
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}</text>'
    )


def svg(height: float, parts: Iterable[str]) -> str:
    """Return a picture of a height, on white."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


PICTURES: Final[dict[str, Callable[[], str]]] = {
    "pipeline": pipeline,
    "offload": offload,
    "shared-layers": shared_layers,
    "memory": memory,
    "race": race,
}


def draw(folder: Path) -> None:
    """Write all pictures into a folder."""
    for name, picture in PICTURES.items():
        (folder / f"{name}.svg").write_text(picture(), encoding="utf-8")


if __name__ == "__main__":
    draw(Path(__file__).parent)
