"""A ledger of expert weights: how many bytes of each tensor went to another device, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class Account:
    """What was done for one weight on one device.

    Attributes:
        decisions: Routing decisions for which its rows were copied.
        chosen_rows: Rows that these named, each counted once for each decision.
        uploaded_rows: Those of them that came from the weight's home.
        cached_rows: Those of them that came from the cache instead.
        evicted_rows: Rows that the cache gave up for others.
        copies: Copies from the weight's home: neighbouring rows go together.
        layers: Times that all rows were copied, before anybody had chosen.
    """

    decisions: int = 0
    chosen_rows: int = 0
    uploaded_rows: int = 0
    uploaded_nbytes: int = 0
    cached_rows: int = 0
    evicted_rows: int = 0
    copies: int = 0
    layers: int = 0
    layer_nbytes: int = 0

    def add(self, other: "Account") -> None:
        """Add all numbers of another account."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))


@dataclass(slots=True)
class ExpertLedger:
    """Accounts by (weight, device).

    Attributes:
        accounts: By name of the weight and of the device that its rows were copied to.
        id_reads: Times that the host read ids: once for each routing decision.
    """

    accounts: dict[tuple[str, str], Account] = field(default_factory=dict)
    id_reads: int = 0

    def account(self, weight: str, device: str) -> Account:
        """Return the account of a weight on a device, opened on first use."""
        return self.accounts.setdefault((weight, device), Account())

    @property
    def total(self) -> Account:
        """All accounts together."""
        total = Account()
        for account in self.accounts.values():
            total.add(account)
        return total

    def by_tensor(self) -> Mapping[str, Mapping[str, int]]:
        """Return the numbers of each tensor as plain data, by ``name -> device`` where not 0."""
        return {
            f"{weight} -> {device}": {
                f.name: n for f in fields(account) if (n := getattr(account, f.name))
            }
            for (weight, device), account in sorted(self.accounts.items())
        }
