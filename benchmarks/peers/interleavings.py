"""How many orders a program has, which is what whoever tries them one by one would execute."""

from collections.abc import Sequence


def count_interleavings(needs: Sequence[frozenset[int]], limit: int) -> int:
    """Return the number of orders in which every step comes after those that it needs.

    Counted over the sets of steps that can have been done, each looked at once.

    Args:
        needs: For each step those that come before it.
        limit: The largest count to return; also the largest number of sets to look at, beyond
            which the limit is returned as what is known.
    """
    everything = (1 << len(needs)) - 1
    masks = [sum(1 << k for k in some) for some in needs]
    ways = {0: 1}
    looked_at = 0
    for _ in needs:
        following: dict[int, int] = {}
        for done, count in ways.items():
            for i, needed in enumerate(masks):
                if not done >> i & 1 and needed & ~done == 0:
                    then = done | 1 << i
                    following[then] = following.get(then, 0) + count
        ways = following
        looked_at += len(ways)
        if looked_at > limit:
            return limit
    return min(limit, ways.get(everything, 0))
