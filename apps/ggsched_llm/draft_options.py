"""What proposes tokens, where it runs, and how many it proposes at once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from ggsched.errors import UsageError
from ggsched.flags import check_values, flag, number

SPECULATION: Final = "Speculative decoding"


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r} is not a list of devices such as cuda:1,cpu:0")
    return names


def _option(
    default: Any,
    names: str,
    kind: Callable[[str], Any] | tuple[str, ...] | int,
    text: str,
    metavar: str | None = None,
) -> Any:
    """Return a field with an option of this heading."""
    return flag(default, names, kind, text, heading=SPECULATION, metavar=metavar)


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How a draft takes part; see ``Session.use_draft``.

    Attributes:
        draft_model: Its file; for the command line, which opens it.
        draft_devices: Of a draft model; None for the session's first device.
        draft_max: Tokens that are proposed at once.
        draft_min: A proposal of fewer tokens is not verified.
        draft_p_min: A proposal ends in front of a token that the draft gives a lower probability.
            Above 0, logits of a draft model come to the host for each token.
        spec_type: For the command line, too; ``auto``: a draft model if one is named.
    """

    draft_model: str | None = _option(
        None, "-md --model-draft --spec-draft-model", str,
        "A small model with the same vocabulary that proposes tokens, which MODEL verifies "
        "together. The text stays that of MODEL alone.", "FILE",
    )  # fmt: skip
    draft_devices: tuple[str, ...] | None = _option(
        None, "--draft-devices -devd --device-draft --spec-draft-device", _names,
        "Devices of the draft model. [default: the first of --devices]", "NAME:N,...",
    )  # fmt: skip
    draft_max: int = _option(
        4, "--draft-max --draft --draft-n --spec-draft-n-max", 1,
        "Tokens that are proposed at once.", "N",
    )  # fmt: skip
    draft_min: int = _option(
        0, "--draft-min --draft-n-min --spec-draft-n-min", 0,
        "Proposals of fewer tokens are not verified.", "N",
    )  # fmt: skip
    draft_p_min: float = _option(
        0.0, "--draft-p-min --spec-draft-p-min", number,
        "Propose no token to which the draft gives a lower probability.", "P",
    )  # fmt: skip
    spec_type: Literal["auto", "none", "draft-simple", "draft-mtp"] = _option(
        "auto", "--spec-type", ("auto", "none", "draft-simple", "draft-mtp"),
        "What proposes tokens: a draft model (draft-simple, see -md), or the head of MODEL that "
        "predicts further tokens (draft-mtp). auto: draft-simple with -md, else none.",
    )  # fmt: skip

    def check(self) -> None:
        """Refuse values that make no sense.

        Raises:
            UsageError: a value is out of range, or options contradict each other.
        """
        check_values(self)
        kind, has_model = self.spec_type, self.draft_model is not None
        if kind != "auto" and (kind == "draft-simple") != has_model:
            what = f"--spec-type {kind} with{'' if has_model else 'out'} -md"
            raise UsageError(what, why="draft-simple takes a draft model, and nothing else does")
        if self.draft_min > self.draft_max:
            what = f"--draft-min {self.draft_min} with --draft-max {self.draft_max}"
            raise UsageError(what, why="no proposal would be verified", hint="lower --draft-min")
        if not 0 <= self.draft_p_min <= 1:
            raise UsageError(f"--draft-p-min {self.draft_p_min}", why="it must be from 0 to 1")
