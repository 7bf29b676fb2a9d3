"""Groups of nodes that a device compiles as one."""

from collections.abc import Sequence

import msgspec


class Fusion(msgspec.Struct, frozen=True, gc=False):
    """Nodes of one stream that run as one, at the position of the last of them.

    Results of all but the last node are undefined once the group has run.

    Attributes:
        pattern: Name of the pattern, see ``ggsched.ir.fusion``.
        nodes: Nodes in the order of the pattern's members, which is the order in which they run.
    """

    pattern: str
    nodes: tuple[int, ...]


def run_order(count: int, fusions: Sequence[Fusion]) -> Sequence[int]:
    """Return the order in which nodes run: program order, with each group where its last node is.

    Args:
        count: Number of nodes.
        fusions: Groups that have no node in common.
    """
    if not fusions:
        return range(count)
    groups = {f.nodes[-1]: f.nodes for f in fusions}
    earlier = {n for f in fusions for n in f.nodes[:-1]}
    order: list[int] = []
    for n in range(count):
        if n not in earlier:
            order.extend(groups.get(n, (n,)))
    return order
