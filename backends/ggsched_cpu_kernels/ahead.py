"""What a member of the team fetches of the weights that come next, while it has to wait.

Memory has nothing to do while members wait for each other, for a small task of member 0, or for the
next table. A product that is one part for each member says where the weights of the parts lie. A
waiting member asks for some lines of its own next parts, looks whether it may go on, and so forth;
what it has fetched by then is in its cache. After a table it fetches those with which the table
began, since the next token runs the same.
"""

from typing import Final

from ggsched_cpu_kernels.emit import Builder, Value, i64

ENTRY_NBYTES: Final = 64
"""Of an entry of a table of tasks, and of a note: see ``walk``."""

PARTS, WEIGHTS, PART_NBYTES = 16, 32, 40
"""Offsets in an entry: the number of parts, where the weights of the first part begin, and the
bytes of each; 0 if a task does not say."""

WINDOW: Final = 12
"""Tasks after the present one of which weights are fetched."""

WAIT_NBYTES: Final = 64 << 10
"""The most that is fetched of a part at a barrier."""

NOTES: Final = 32
"""How many products at the beginning of a table a member notes."""

IDLE_NBYTES: Final = 1 << 20
"""The most that a member fetches after a table: half of the cache of a core."""

_LINE: Final = 64
_LINES: Final = 8


class Ahead:
    """A cursor over the parts of one member.

    Args:
        b: Writes the function.
        table: Entries.
        member: Whose parts.
        most: Bytes of a part at most.
    """

    def __init__(self, b: Builder, table: Value, member: Value, most: int) -> None:
        self._b, self._table, self._member, self._most = b, table, member, most
        self._number, self._at = b.var(i64(0)), b.var(i64(0))
        self.fetched = b.var(i64(0))

    def restart(self) -> None:
        """Begin with the first entry."""
        for variable in (self._number, self._at, self.fetched):
            self._b.set(variable, i64(0))

    def pass_by(self, number: Value) -> None:
        """Leave out all entries up to this one."""
        b = self._b
        with b.when(b.compare("sle", b.get(self._number), number)):
            b.set(self._number, b.add(number, 1))
            b.set(self._at, i64(0))

    def step(self, end: Value) -> None:
        """Ask for some lines, or go on to the next entry, if that is below ``end``."""
        b = self._b
        with b.when(b.compare("slt", b.get(self._number), end)):
            entry = b.offset(self._table, b.mul(b.get(self._number), ENTRY_NBYTES))
            nbytes = b.load("i64", b.offset(entry, PART_NBYTES), 8)
            parts = b.load("i64", b.offset(entry, PARTS), 8)
            wanted = b.select(
                b.compare("slt", self._member, parts), b.umin(nbytes, self._most), i64(0)
            )
            at = b.get(self._at)
            more, done, end_label = (b.fresh(n) for n in ("fetch", "fetched", "going"))
            b.line(f"br {b.compare('slt', at, wanted)}, label %{more}, label %{done}")
            b.begin(more)
            part = b.offset(b.load("ptr", b.offset(entry, WEIGHTS), 8), b.mul(self._member, nbytes))
            for i in range(_LINES):
                b.prefetch(b.offset(part, b.add(at, i * _LINE)), level=2)
            b.set(self._at, b.add(at, _LINES * _LINE))
            b.set(self.fetched, b.add(b.get(self.fetched), _LINES * _LINE))
            b.line(f"br label %{end_label}")
            b.begin(done)
            b.set(self._number, b.add(b.get(self._number), 1))
            b.set(self._at, i64(0))
            b.line(f"br label %{end_label}")
            b.begin(end_label)


class Notes:
    """A table of the products with which a table began, in memory of the member.

    Args:
        b: Writes the function.
        memory: ``NOTES`` entries.
    """

    def __init__(self, b: Builder, memory: Value) -> None:
        self._b, self.memory = b, memory
        self.count = b.var(i64(0))

    def restart(self) -> None:
        """Forget what is there."""
        self._b.set(self.count, i64(0))

    def add(self, entry: Value) -> None:
        """Note an entry, if it says where its weights lie and there is room."""
        b = self._b
        nbytes = b.load("i64", b.offset(entry, PART_NBYTES), 8)
        count = b.get(self.count)
        is_one = b.compare("ne", nbytes, 0)
        with b.when(b.binary("and", is_one, b.compare("slt", count, i64(NOTES)))):
            note = b.offset(self.memory, b.mul(count, ENTRY_NBYTES))
            for field in (PARTS, WEIGHTS, PART_NBYTES):
                b.store(b.load("i64", b.offset(entry, field), 8), b.offset(note, field), 8)
            b.set(self.count, b.add(count, 1))
