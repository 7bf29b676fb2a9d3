"""The backend: devices by index, and several on one card."""

from typing import Final

from ggsched.backend.protocols import Device
from ggsched.errors import BackendUnavailable
from ggsched_cuda import cards, driver
from ggsched_cuda.card import Card
from ggsched_cuda.device import PARTS, CudaDevice


class CudaBackend:
    """Finds the cards of the machine.

    ``cuda:0`` is a card. ``cuda:0/0`` to ``cuda:0/3`` are logical devices on it, each with a
    quarter of its memory and streams of its own; between two of them things go as between two
    cards that reach each other.

    Raises:
        BackendUnavailable: there is no driver or no card.
    """

    name: Final = "cuda"
    contract_version: Final = (1, 0)

    def __init__(self) -> None:
        self._found = driver.find_cards()

    def device_count(self) -> int:
        """How many cards are offered."""
        return len(self._found)

    def open_device(self, index: int) -> Device:
        """Open a card; every call gives a device of its own."""
        return CudaDevice(self._card(index), f"cuda:{index}", 1)

    def open_part(self, index: int, part: int) -> Device:
        """Open a logical device of a card.

        Raises:
            BackendUnavailable: there is no such card, or no such part.
        """
        if not 0 <= part < PARTS:
            raise BackendUnavailable(
                f"there is no device cuda:{index}/{part}",
                why=f"a card has {PARTS} logical devices",
                hint="count from zero",
            )
        return CudaDevice(self._card(index), f"cuda:{index}/{part}", PARTS)

    def _card(self, index: int) -> Card:
        if not 0 <= index < len(self._found):
            raise BackendUnavailable(
                f"there is no device cuda:{index}",
                why=f"there are {len(self._found)}",
                hint="count from zero; cuda:0/1 is the second logical device of the first card",
            )
        try:
            return cards.CARDS.open(self._found[index], len(self._found))
        except driver.CudaError as error:
            raise BackendUnavailable(
                "the card cannot be used",
                where=f"cuda:{index}",
                why=str(error),
                hint="after a fault CUDA ends all work of a process on a card: start it again",
            ) from error
