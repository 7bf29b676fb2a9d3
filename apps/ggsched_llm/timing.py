"""Time that tokens take."""

from dataclasses import dataclass


@dataclass(slots=True)
class Timing:
    """Tokens and seconds spent on them.

    Attributes:
        prompt_tokens: Tokens that were fed in runs of several, or as a prompt.
        prompt_s: Seconds that took.
        decode_tokens: Tokens that were fed one by one while generating.
        decode_s: Seconds that took.
        planning_s: Seconds spent on planning, checks included.
        setup_s: Seconds spent on planning, loading weights and compiling. No token is charged for
            them: they are not part of ``prompt_s``, ``decode_s`` and ``fastest_step_s``.
        batches: Batches of several micro-batches.
        joined: Of them, those that ran as one graph.
        fastest_step_s: Seconds of the fastest of the decoding steps, 0 before there is one; of
            those without a draft.
        rounds: Decoding steps that verified a draft.
        drafted: Tokens that these verified.
        accepted: Of them, those that were chosen.
    """

    prompt_tokens: int = 0
    prompt_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    planning_s: float = 0.0
    setup_s: float = 0.0
    batches: int = 0
    joined: int = 0
    fastest_step_s: float = 0.0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0

    def note_step(self, seconds: float) -> None:
        """Take note of a decoding step."""
        self.decode_tokens += 1
        self.decode_s += seconds
        if self.fastest_step_s:
            seconds = min(seconds, self.fastest_step_s)
        self.fastest_step_s = seconds
