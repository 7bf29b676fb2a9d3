"""Placement by predicted cost: a list schedule and moves of runs of nodes, decided by whole plans.

Candidates are the whole graph on each device, ggml's rules, and a list schedule. The list schedule
is that of Arabnejad and Barbosa, "List Scheduling Algorithm for Heterogeneous Systems by an
Optimistic Cost Table" (IEEE TPDS 25(3), 2014), which is HEFT (Topcuoglu, Hariri and Wu, IEEE TPDS
13(3), 2002) with a look ahead: each node goes to the device on which its own finish and the
shortest way from there to the end are earliest. Nodes are taken in program order instead of by
rank, because that is the order on each device. The best candidate is then improved by moves of
runs of nodes and of pairs: an estimate ranks them, and a plan with its prediction decides. Small
graphs get all placements tried instead, and somewhat larger ones all of them estimated and the most
promising tried.

A candidate that does not fit the devices' memory is worse than any that does. As single devices are
candidates, and all are compared by the prediction of their plans, the result is never predicted to
be slower than the best single device that can run the graph and holds it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import nsmallest
from itertools import combinations, islice, product
from math import inf
from typing import Final

from ggsched.passes.place import PlacementOutcome, PlacementProblem
from ggsched.passes.placement.estimate import Estimator
from ggsched.passes.placement.ggml import place
from ggsched.passes.placement.ranked import ranked
from ggsched.passes.placement.tables import PlacementTables, finished, place_pinned
from ggsched.plan.placement import Placement, PlacementCandidate
from ggsched.topology.cost import HOST, is_beside_cpu

_PLANS: Final = 128
"""Plans that the moves may try, on small graphs; all placements where there are no more."""
_ALL: Final = 4_096
"""Placements of which each is estimated: those of 12 storages over two devices."""
_SHORTLIST: Final = 256
"""How many of these are planned, those of the best estimates."""
_PLANNED_NODES: Final = 1_500
"""Nodes of all plans that the moves may try, which is what counts on large graphs."""
_ESTIMATED_NODES: Final = 50_000
"""Nodes of all estimates that the moves may make."""
_LONG: Final = 8
"""Runs of more than such a part of a graph are moved before chains."""
_GAIN: Final = 1.5
"""What it takes to leave the backend cpu for another device on the same processor."""
_SPLIT_GAIN: Final = 2.5
"""What it takes to share a graph with it, which has crossings besides that take turns with both."""
_RESERVES: Final = 4
"""List schedules to try, each with more memory left to intermediate results."""


@dataclass(frozen=True, slots=True)
class CostBased:
    """Placement with the least predicted time that fits the devices' memory.

    Homes of weights and states follow their first user, unless the constraints give them.

    Attributes:
        effort: Factor on the number of moves that are tried. It counts steps, not seconds, so that
            the same graph gives the same plan everywhere.
    """

    effort: int = 1

    @property
    def key(self) -> str:
        """See ``PlacementPolicy``."""
        return f"cost(effort={self.effort})"

    def place(self, problem: PlacementProblem) -> Placement:
        """See ``PlacementPolicy``."""
        search = _Search(problem, self.effort)
        if len(problem.topology.devices) == 1 or not search.free:
            return place(problem.graph, problem.topology, problem.constraints)
        return search.run()


Home = tuple[int, ...]
"""Device by storage, -1 for storages that no node writes."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    home: Home
    outcome: PlacementOutcome

    @property
    def rank(self) -> tuple[int, float]:
        return sum(self.outcome.shortage.values()), self.outcome.seconds


class _Search:
    """Candidates of one problem, and the best of them so far."""

    def __init__(self, problem: PlacementProblem, effort: int) -> None:
        self.problem = problem
        self.effort = effort
        self.tables = PlacementTables(problem.graph, problem.topology)
        place_pinned(self.tables, problem.constraints)
        self.fixed = tuple(self.tables.home)
        self.free = [s for s in dict.fromkeys(self.tables.out) if self.fixed[s] < 0]
        self.devices = range(len(problem.topology.devices))
        self.estimator = Estimator(problem, self.tables.out)
        self.reserve = [0 for _ in self.devices]
        self.outcomes: dict[Home, PlacementOutcome] = {}
        self.ranks: dict[Home, tuple[int, float]] = {}
        self.candidates: list[_Candidate] = []
        nodes = max(1, len(problem.graph.nodes))
        self.plans = min(_PLANS * effort, _PLANNED_NODES * effort // nodes)
        self.estimates = max(1, _ESTIMATED_NODES * effort // nodes)

    def run(self) -> Placement:
        """Return the best placement that is found."""
        for device in self.devices:
            self.note(*self.alone(device))
        self.note("ggml's rules", self.by_rules())
        for _ in range(_RESERVES):
            found = self.note("list schedule", self.list_schedule())
            if not found.outcome.shortage:
                break
            for device, nbytes in found.outcome.shortage.items():
                self.reserve[device] += nbytes
        best = min(self.candidates, key=lambda c: c.rank)
        count = len(self.devices) ** len(self.free)
        if count <= _PLANS:
            best = self.best_of(best, "best of all", self.all_homes())
        else:
            if count <= _ALL:
                size = _SHORTLIST * self.effort
                promising = nsmallest(size, self.all_homes(), key=self.rank)
                best = self.best_of(best, "best by estimate", promising)
            best = self.improve(self.climb(best))
        if best not in self.candidates:
            self.candidates.append(best)
        return self.placement(self.preferred(best))

    def preferred(self, best: _Candidate) -> _Candidate:
        """Return the best placement, or the backend cpu alone where that is about as good.

        Another device on the same processor gains by its kernels alone, and by no more than their
        predictions are wrong unless it is predicted to be much faster.
        """
        facts = self.problem.topology.devices
        if not any(d >= 0 and is_beside_cpu(facts[d]) for d in best.home):
            return best
        own = {f"{d.name} alone" for d in facts if d.kind == "cpu"}
        cpu = min((c for c in self.candidates if c.name in own), key=lambda c: c.rank, default=best)
        others = (c for c in self.candidates if c is best or c.name.endswith(" alone"))
        for other in sorted(others, key=lambda c: c.rank):
            lacks, seconds = other.rank
            gain = _SPLIT_GAIN if len(set(other.home) - {-1}) > 1 else _GAIN
            if cpu.rank > (lacks, seconds * gain):
                return other
        return cpu

    def note(self, name: str, home: Home) -> _Candidate:
        """Plan a candidate; the best of a name is kept."""
        found = _Candidate(name, home, self.outcome(home))
        others = [c for c in self.candidates if c.name == name]
        if not others:
            self.candidates.append(found)
        elif found.rank < others[0].rank:
            self.candidates[self.candidates.index(others[0])] = found
        return found

    def outcome(self, home: Home) -> PlacementOutcome:
        """Return what the plan of a placement is predicted to take."""
        known = self.outcomes.get(home)
        if known is None:
            known = self.outcomes[home] = self.problem.try_out(self.settled(home, ""))
        return known

    def settled(self, home: Home, detail: str) -> Placement:
        """Return the placement with these homes."""
        tables = self.tables
        for storage in self.free:
            tables.settle(storage, home[storage], "cost", detail)
        return finished(tables, self.problem.constraints)

    def placement(self, best: _Candidate) -> Placement:
        """Return the placement of the best candidate, with all that were considered."""
        found = self.settled(best.home, best.name)
        considered = tuple(
            PlacementCandidate(
                c.name,
                c.outcome.seconds if c.outcome.seconds < inf else None,
                sum(c.outcome.shortage.values()),
                c is best,
                c.outcome.reason,
            )
            for c in self.candidates
        )
        return Placement(found.choices, found.homes, found.offloads, considered)

    def alone(self, device: int) -> tuple[str, Home]:
        """Return the placement of all that can be on one device, and its name."""
        able, home, is_whole = self.tables.able, list(self.fixed), True
        for node, storage in enumerate(self.tables.out):
            if home[storage] < 0:
                home[storage] = device if able[storage] >> device & 1 else self.fastest(node)
            is_whole = is_whole and home[storage] == device
        name = self.problem.topology.devices[device].name
        return f"{name} alone" if is_whole else f"{name} as far as it can", tuple(home)

    def fastest(self, node: int) -> int:
        """Return the device that computes a node in the least time."""
        mask, costs = self.tables.able[self.tables.out[node]], self.estimator.cost[node]
        return min((d for d in self.devices if mask >> d & 1), key=lambda d: costs[d])

    def by_rules(self) -> Home:
        """Return where ggml's rules put storages."""
        problem = self.problem
        found = place(problem.graph, problem.topology, problem.constraints)
        home = list(self.fixed)
        for storage, choice in zip(self.tables.out, found.choices, strict=True):
            home[storage] = choice.device
        return tuple(home)

    def list_schedule(self) -> Home:
        """Return the placement of the list schedule; weights fill devices up to the reserve."""
        estimator, out, able = self.estimator, self.tables.out, self.tables.able
        home = list(self.fixed)
        ahead = self.optimistic_costs()
        room = _Room(self.problem, self.reserve)
        free_at = [0.0 for _ in self.devices]
        written: dict[int, float] = {}
        for i, storage in enumerate(out):
            ends: dict[int, float] = {}
            for d in self.devices:
                if home[storage] not in (-1, d) or not able[storage] >> d & 1:
                    continue
                start = free_at[estimator.processors[d]]
                for source, nbytes, _ in estimator.reads[i]:
                    src = home[source] if home[source] >= 0 else room.where(source, d)
                    arrival = written.get(source, 0.0) + estimator.crossing_s(src, d, nbytes)
                    start = max(start, arrival)
                ends[d] = start + estimator.cost[i][d]
            fitting = [d for d in ends if room.holds(i, d)] or list(ends)
            best = min(fitting, key=lambda d: (ends[d] + ahead[i][d], d))
            home[storage] = best
            room.take(i, best)
            free_at[estimator.processors[best]] = written[storage] = ends[best]
        return tuple(home)

    def optimistic_costs(self) -> list[list[float]]:
        """Return the shortest way to the end after each node, by device: the cost table."""
        estimator, out, able = self.estimator, self.tables.out, self.tables.able
        tensors, graph = self.problem.graph.tensors, self.problem.graph
        ahead = [[0.0 for _ in self.devices] for _ in out]
        last: dict[int, int] = {}
        writer: list[dict[int, int]] = []
        for i, storage in enumerate(out):
            read = (source for source, _, _ in estimator.reads[i])
            writer.append({s: last[s] for s in (*read, storage) if s in last})
            last[storage] = i
        for tid in graph.outputs:
            t = tensors[tid]
            if t.storage in last:
                for d in self.devices:
                    ahead[last[t.storage]][d] = estimator.crossing_s(d, HOST, t.nbytes)
        for i in range(len(out) - 1, -1, -1):
            mask = able[out[i]]
            then = [(w, ahead[i][w] + estimator.cost[i][w]) for w in self.devices if mask >> w & 1]
            nbytes_of = {s: n for s, n, _ in estimator.reads[i]}
            for storage, before in writer[i].items():
                nbytes = nbytes_of.get(storage, 0)
                for d in self.devices:
                    way = min(s + estimator.crossing_s(d, w, nbytes) for w, s in then)
                    ahead[before][d] = max(ahead[before][d], way)
        return ahead

    def all_homes(self) -> Iterator[Home]:
        """Yield all placements."""
        able = self.tables.able
        possible = [[d for d in self.devices if able[s] >> d & 1] for s in self.free]
        for where in product(*possible):
            home = list(self.fixed)
            for storage, device in zip(self.free, where, strict=True):
                home[storage] = device
            yield tuple(home)

    def better(self, best: _Candidate, home: Home, name: str = "local moves") -> _Candidate | None:
        """Return a placement if its plan is better than the best so far."""
        found = _Candidate(name, home, self.outcome(home))
        return found if found.rank < best.rank else None

    def best_of(self, best: _Candidate, name: str, homes: Iterable[Home]) -> _Candidate:
        """Return the best of some placements, by their plans."""
        for home in homes:
            best = self.better(best, home, name) or best
        return best

    def climb(self, best: _Candidate) -> _Candidate:
        """Return the placement that moves by estimate lead to, if its plan is better."""
        home, is_better = best.home, True
        while is_better:
            is_better = False
            for move in self.moves(home):
                if len(self.ranks) >= self.estimates:
                    break
                if self.rank(move) < self.rank(home):
                    home, is_better = move, True
                    break
        return self.better(best, home) or best

    def improve(self, best: _Candidate) -> _Candidate:
        """Return the placement that moves lead to, each decided by its plan."""
        limit = len(self.outcomes) + self.plans
        while len(self.outcomes) < limit:
            near = dict.fromkeys(islice(self.moves(best.home), self.estimates // 4))
            fresh = (home for home in near if home not in self.outcomes)
            most, better = limit - len(self.outcomes), partial(self.better, best)
            found = next(ranked(fresh, self.rank, better, most), None)
            if found is None:
                break
            best = found
        return best

    def rank(self, home: Home) -> tuple[int, float]:
        """Return the estimate of a placement."""
        known = self.ranks.get(home)
        if known is None:
            known = self.ranks[home] = self.estimator.rank(home, self.reserve)
        return known

    def moves(self, home: Home) -> Iterator[Home]:
        """Yield placements with a run of storages elsewhere, long runs first, then with a pair.

        Between long and short runs come chains, which are beside each other where a graph forks.
        """
        for run in self.runs():
            for device in self.devices:
                moved = self.moved(home, run, device)
                if moved != home:
                    yield moved
        for pair in combinations(self.free, 2):
            for first, second in product(self.devices, repeat=2):
                moved = self.moved(self.moved(home, pair[:1], first), pair[1:], second)
                if moved != home:
                    yield moved

    def runs(self) -> Iterator[Sequence[int]]:
        """Yield storages to move together."""
        count = size = len(self.free)
        while size:
            for start in range(0, count - size + 1, max(1, size // 2)):
                yield self.free[start : start + size]
            if size > count // _LONG >= size // 2:
                yield from self.chains
            size //= 2

    @cached_property
    def chains(self) -> list[list[int]]:
        """Storages each of which only the next one reads, as a product and its activation."""
        reads: dict[int, set[int]] = {storage: set() for storage in self.free}
        readers: dict[int, set[int]] = {storage: set() for storage in self.free}
        for node, storage in enumerate(self.tables.out):
            for source, _, _ in self.estimator.reads[node]:
                if source != storage and source in reads and storage in reads:
                    reads[storage].add(source)
                    readers[source].add(storage)
        found: dict[int, list[int]] = {}
        for storage in self.free:  # by their first nodes; a later one may write what was read
            before = next(iter(reads[storage])) if len(reads[storage]) == 1 else -1
            is_next = before in found and len(readers[before]) == 1
            chain = found[before] if is_next else []
            chain.append(storage)
            found[storage] = chain
        chains = {id(chain): chain for chain in found.values()}
        return [chain for chain in chains.values() if len(chain) > 1]

    def moved(self, home: Home, run: Sequence[int], device: int) -> Home:
        """Return a placement with those of a run on a device that it supports."""
        changed = list(home)
        for storage in run:
            if self.tables.able[storage] >> device & 1:
                changed[storage] = device
        return tuple(changed)


class _Room:
    """Memory that weights and states leave, while they are placed with their first users."""

    def __init__(self, problem: PlacementProblem, reserve: Sequence[int]) -> None:
        graph, devices = problem.graph, problem.topology.devices
        self._left = [d.memory_nbytes - r for d, r in zip(devices, reserve, strict=True)]
        self._tensors = graph.tensors
        self._home: dict[int, int] = {}
        self._lasting: list[dict[int, int]] = []
        for name, device in problem.constraints.homes.items():
            if name in graph:
                self._place(graph.named(name).id, device)
        for node in graph.nodes:
            roots = {graph.tensors[t].storage for t in (*node.inputs, node.output)}
            lasting = {s: graph.tensors[s] for s in roots}
            self._lasting.append(
                {s: t.nbytes for s, t in lasting.items() if t.role.value in ("weight", "state")}
            )

    def where(self, storage: int, device: int) -> int:
        """Return where a storage is that no node has written, if its reader is on a device."""
        if self._tensors[storage].role.value == "input":
            return self._home.get(storage, HOST)
        return self._home.get(storage, device)

    def holds(self, node: int, device: int) -> bool:
        """Whether what a node uses for the first time fits its device."""
        new = sum(n for s, n in self._lasting[node].items() if s not in self._home)
        return new <= self._left[device]

    def take(self, node: int, device: int) -> None:
        """Place what a node uses for the first time with it."""
        for storage in self._lasting[node]:
            if storage not in self._home:
                self._place(storage, device)

    def _place(self, storage: int, device: int) -> None:
        self._home[storage] = device
        self._left[device] -= self._tensors[storage].nbytes
