"""Memory of intermediate results by the method of ggml's graph allocator, as a reference.

Written from what ``ggml_gallocr`` is known to do (ggml 0.25, August 2026), for one buffer:

* inputs are allocated first, so that nothing overwrites them before they are read;
* the nodes are taken in order. A result takes over the bytes of an operand that nobody else reads,
  of the same type, shape and strides, if the op is one that may work in place; else it gets the
  smallest free block that is large enough, the last one, which has no end, only if no other fits;
* then whatever this node was the last to read is freed and joined with its free neighbours;
* outputs are never freed. Sizes are rounded up to the alignment.

Weights and states are not the allocator's. ggml limits a buffer to 16 chunks, which matters only
where a device limits the size of a buffer, and is left out.
"""

from bisect import insort
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from ggsched.ir.graph import Graph, Node
from ggsched.ir.tensor import Role

IN_PLACE: Final = frozenset(
    {"add", "add_id", "sub", "mul", "div", "scale", "clamp"}
    | {"rms_norm", "rope", "soft_max", "silu", "gelu"}
)
"""Of ggsched's ops those for which ``ggml_op_can_inplace`` holds."""

_ENDLESS: Final = 1 << 62
_BEFORE: Final = -1


class Request(NamedTuple):
    """Bytes that somebody wants.

    Attributes:
        nbytes: Length.
        birth: Step at which they are written; -1 for inputs.
        death: Last step that reads them.
        over: Requests that die at ``birth`` and whose bytes these may take over, in order of
            preference.
    """

    nbytes: int
    birth: int
    death: int
    over: tuple[int, ...] = ()


class Placed(NamedTuple):
    """Where requests lie, and bytes needed in all."""

    offsets: list[int]
    total: int


class FreeList:
    """Free blocks as (offset, nbytes), in order; the last has no end.

    Attributes:
        top: Most bytes that were in use at once, gaps included.
    """

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = [(0, _ENDLESS)]
        self.top = 0

    def take(self, nbytes: int) -> int:
        """Return the offset of the smallest block that is large enough, the last as a last resort.

        Of several that are equally small the one that lies last is taken.
        """
        chosen, least = len(self.blocks) - 1, _ENDLESS
        for i, (_, free) in enumerate(self.blocks[:-1]):
            if nbytes <= free <= least:
                chosen, least = i, free
        offset, free = self.blocks[chosen]
        if free == nbytes:
            del self.blocks[chosen]
        else:
            self.blocks[chosen] = (offset + nbytes, free - nbytes)
        self.top = max(self.top, offset + nbytes)
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        """Free bytes and join them with their free neighbours."""
        insort(self.blocks, (offset, nbytes))
        i = self.blocks.index((offset, nbytes))
        for k in (i, i - 1):  # with the one after it first, so that positions before it stay
            if 0 <= k < len(self.blocks) - 1:
                (a, length), (b, more) = self.blocks[k : k + 2]
                if a + length == b:
                    self.blocks[k : k + 2] = [(a, length + more)]


def place(requests: Sequence[Request], alignment: int) -> Placed:
    """Place requests in the order of their births, as they are listed where these are equal."""
    sizes = [-(-r.nbytes // alignment) * alignment for r in requests]
    offsets = [0] * len(requests)
    deaths: dict[int, list[int]] = {}
    for i, r in enumerate(requests):
        deaths.setdefault(max(r.birth, r.death), []).append(i)
    free, owned = FreeList(), set[int]()
    births = sorted(range(len(requests)), key=lambda i: requests[i].birth)
    at, end = 0, max(deaths, default=_BEFORE)
    for step in range(_BEFORE, end + 1):
        while at < len(births) and requests[births[at]].birth == step:
            i = births[at]
            taken = next((k for k in requests[i].over if k in owned), None)
            if taken is None:
                offsets[i] = free.take(sizes[i])
            else:
                offsets[i] = offsets[taken]
                owned.discard(taken)
            owned.add(i)
            at += 1
        for i in deaths.get(step, ()):
            if i in owned:
                owned.discard(i)
                free.give_back(offsets[i], sizes[i])
    return Placed(offsets, free.top)


def requests_of(graph: Graph, in_place: Collection[str] = IN_PLACE) -> list[Request]:
    """Return the bytes that a graph needs on one device that holds its weights and states.

    Args:
        graph: The graph.
        in_place: Ops whose result may take over an operand's bytes.
    """
    wanted = [
        t for t in graph.tensors if not t.is_view and t.nbytes and t.role in (Role.INPUT, Role.TEMP)
    ]
    number = {t.id: i for i, t in enumerate(wanted)}
    end = len(graph.nodes)
    birth = dict.fromkeys(number.values(), _BEFORE)
    death = dict(birth)
    made_by: dict[int, Node] = {}
    for node in graph.nodes:
        for tid in node.tensors:
            i = number.get(graph.tensors[tid].storage)
            if i is not None:
                death[i] = node.id
        made = number.get(node.output)
        if made is not None and made not in made_by:
            birth[made], made_by[made] = node.id, node
    for tid in graph.outputs:
        i = number.get(graph.tensors[tid].storage)
        if i is not None:
            death[i] = end
    over = {
        i: _over(graph, node, number, death) if node.op in in_place else ()
        for i, node in made_by.items()
    }
    return [Request(t.nbytes, birth[i], death[i], over.get(i, ())) for i, t in enumerate(wanted)]


def _over(
    graph: Graph, node: Node, number: dict[int, int], death: dict[int, int]
) -> tuple[int, ...]:
    """Return the requests whose bytes the result of a node may take over."""
    result = graph.tensors[node.output]
    readers = Counter(graph.tensors[tid].storage for tid in node.inputs)
    found = []
    for tid in node.inputs:
        t = graph.tensors[tid]
        i = number.get(t.storage)
        if (
            i is not None
            and death[i] == node.id
            and readers[t.storage] == 1
            and t.offset == 0
            and (t.dtype, t.shape, t.strides) == (result.dtype, result.shape, result.strides)
        ):
            found.append(i)
    return tuple(found)


def conflicts(requests: Sequence[Request], placed: Placed) -> list[tuple[int, int]]:
    """Return the pairs that share bytes while both are needed; none, if the method is right."""
    found = []
    for i, a in enumerate(requests):
        for k in range(i):
            b = requests[k]
            overlap = (
                placed.offsets[i] < placed.offsets[k] + b.nbytes
                and placed.offsets[k] < placed.offsets[i] + a.nbytes
            )
            together = a.birth <= b.death and b.birth <= a.death
            handed_over = (k in a.over and a.birth == b.death) or (
                i in b.over and b.birth == a.death
            )
            if overlap and together and not handed_over:
                found.append((k, i))
    return found
