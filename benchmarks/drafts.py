"""A model with its own first blocks as the draft, against the model alone, by turns.

    python -m benchmarks.drafts FOLDER MODEL DTYPE --devices cuda:0 --first 4 --factors 0.01,1

Blocks behind the first add what they compute times a factor: with a small one the first blocks
predict the text. With the factor 0 the draft has other weights, so that nothing is accepted. Models
are random (``benchmarks.llama_cpp.models``).
"""

import argparse
import sys
from pathlib import Path
from statistics import median

from benchmarks.llama_cpp.models import MODELS, write_model
from ggsched_llm.draft_options import DraftOptions
from ggsched_llm.load import load_model
from ggsched_llm.sampling import Sampling
from ggsched_llm.session import Session, SessionOptions

PROMPT = tuple(range(5, 69))


def main() -> None:
    """Print a line for each factor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("dtype")
    parser.add_argument("--devices", default="cpu:0")
    parser.add_argument("--draft-devices")
    parser.add_argument("--draft-max", type=int, default=4)
    parser.add_argument("--first", type=int, default=1, help="blocks of the draft")
    parser.add_argument("--factors", default="0,0.01,0.1")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("-n", type=int, default=256)
    parser.add_argument("-r", type=int, default=5)
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    small, wrong = (
        write_model(given.folder, given.model, given.dtype, n_layer=given.first, seed=seed)
        for seed in (1, 2)
    )
    for factor in map(float, given.factors.split(",")):
        damped = given.first, factor or 1.0
        path = write_model(given.folder, given.model, given.dtype, damped=damped)
        measure(path, small if factor else wrong, factor, given)
        path.unlink()


def measure(path: Path, small: Path, factor: float, given: argparse.Namespace) -> None:
    """Measure both in turns; the first turn warms up."""
    sizes = SessionOptions(n_ctx=len(PROMPT) + given.n + 64)
    others = tuple(given.draft_devices.split(",")) if given.draft_devices else None
    with Session(load_model(path), given.devices.split(","), sizes) as session:
        session.use_draft(load_model(small), DraftOptions(None, others, given.draft_max))
        timing, draft = session.timing, session.draft
        ratios, rates = list[float](), list[float]()
        accepted = drafted = rounds = steps = 0
        for turn in range(1 + given.r):
            both = []
            for used in (None, draft):
                session.draft = used
                session.reset()
                tokens, seconds = timing.decode_tokens, timing.decode_s
                before = timing.drafted, timing.accepted, timing.rounds
                text = list(session.generate(PROMPT, given.n, Sampling(given.temp)))
                both.append((timing.decode_tokens - tokens) / (timing.decode_s - seconds))
                if used is None:
                    alone = text
            sys.stdout.write(f"turn {turn}: {both[0]:.1f} alone, {both[1]:.1f} with the draft\n")
            if turn:
                ratios.append(both[1] / both[0])
                rates.append(both[0])
                drafted += timing.drafted - before[0]
                accepted += timing.accepted - before[1]
                rounds += timing.rounds - before[2]
                steps += len(text) - 1 - (timing.accepted - before[1])
        sys.stdout.write(
            f"factor {factor:g}: alone {median(rates):.1f} tokens/s; with the draft "
            f"{median(ratios):.2f} of it ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"{accepted / max(1, drafted):.2f} accepted, {given.r * (len(text) - 1) / steps:.1f} "
            f"tokens a step, {rounds} of {steps} steps drafted; "
            f"{'same text' if text == alone else 'other text (near ties)'}\n"
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
