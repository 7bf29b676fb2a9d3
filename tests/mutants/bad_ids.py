"""LCH-3: ids that are out of range, by which other rows are read and written."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from ggsched.backend.arrays import Array, bind_host
from ggsched.backend.base import BaseDevice, BaseProgram
from ggsched.backend.program import BoundNode
from ggsched.backend.protocols import Stream
from ggsched.errors import UsageError
from tests.mutants.baselines import CPU
from tests.mutants.mutant import breaks


class _Forgiving(BaseDevice):
    """Does something else instead of failing, with the ids of one op."""

    op: ClassVar[str] = ""
    ids_at: ClassVar[int] = 1

    def compile(self, nodes: Sequence[BoundNode], stream: Stream) -> BaseProgram:
        """Catch what fails by its ids."""
        program = super().compile(nodes, stream)
        body = program.body
        if body is not None and nodes and nodes[-1].op == self.op:
            run, node = body.run, nodes[-1]

            def forgive() -> None:
                try:
                    run()
                except UsageError:
                    arrays = [bind_host(o) for o in (*node.inputs, node.output)]
                    if not self.instead(arrays, arrays[self.ids_at]):
                        raise

            setattr(body, "run", forgive)  # noqa: B010  # of this one body
        return program

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        """Compute with bad ids; return whether that was done."""
        return False


@breaks("LCH-3", "get_rows counts negative ids from the end.", CPU)
class NegativeRowsAreRead(_Forgiving):
    """As an index of Python's does."""

    op = "get_rows"

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        table, _, out = arrays
        if ids.min() >= 0 or ids.max() >= table.shape[0] or table.ndim != 2:
            return False
        out[...] = table[np.maximum(ids, -table.shape[0])]
        return True


@breaks("LCH-3", "get_rows gives zeros for the row behind the last one.", CPU)
class RowBehindTheLastIsRead(_Forgiving):
    """The comparison is off by one."""

    op = "get_rows"

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        table, _, out = arrays
        if ids.min() < 0 or ids.max() != table.shape[0] or table.ndim != 2:
            return False
        out[...] = np.concatenate([table, np.zeros_like(table[:1])])[ids]
        return True


@breaks("LCH-3", "get_rows looks at the first id only.", CPU)
class FirstIdIsChecked(_Forgiving):
    """One thread checks for all."""

    op = "get_rows"

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        table, _, out = arrays
        rows, flat = table.shape[0], ids.reshape(-1)
        if table.ndim != 2 or not 0 <= flat[0] < rows:
            return False
        out[...] = table[np.clip(ids, 0, rows - 1)]
        return True


@breaks("LCH-3", "set_rows counts negative ids from the end.", CPU)
class NegativeRowsAreWritten(_Forgiving):
    """As an index of Python's does."""

    op = "set_rows"
    ids_at = 2

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        _, src, _, out = arrays
        if ids.min() >= 0 or ids.max() >= out.shape[0]:
            return False
        out[np.maximum(ids, -out.shape[0])] = src
        return True


@breaks("LCH-3", "set_rows ignores rows that are not there.", CPU)
class RowsThatAreNotThereAreIgnored(_Forgiving):
    """A guard without a report."""

    op = "set_rows"
    ids_at = 2

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        _, src, _, out = arrays
        good = (ids >= 0) & (ids < out.shape[0])
        out[ids[good]] = src[good]
        return True


@breaks("LCH-3", "mul_mat_id takes the last expert for those that are not there.", CPU)
class MissingExpertIsTheLast(_Forgiving):
    """The id is clamped."""

    op = "mul_mat_id"
    ids_at = 2

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        arrays[-1][...] = 0
        return True


@breaks("LCH-3", "add_id adds nothing for rows that are not there.", CPU)
class MissingBiasIsNothing(_Forgiving):
    """A guard without a report."""

    op = "add_id"
    ids_at = 2

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        arrays[-1][...] = arrays[0]
        return True


@breaks("LCH-3", "An id that is negative and large is taken for a small one.", CPU)
class LargeNegativeIdsWrap(_Forgiving):
    """The product with the length of a row wraps in 32 bits."""

    op = "get_rows"

    def instead(self, arrays: Sequence[Array], ids: Array) -> bool:
        table, _, out = arrays
        if ids.min() != np.iinfo(np.int32).min or table.ndim != 2:
            return False
        out[...] = table[(ids & 0x7FFFFFFF) % table.shape[0]]
        return True
