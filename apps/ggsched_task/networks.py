"""Task graphs from networkx, and as networkx."""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from ggsched.errors import GraphError
from ggsched.ops.tasks import ANY_KIND
from ggsched_task.graph import DEFAULT_COST, TaskGraph, Value

if TYPE_CHECKING:
    import networkx as nx


def from_networkx(network: "nx.DiGraph[Any]") -> tuple[TaskGraph, dict[Hashable, Value]]:
    """Return the tasks of a directed graph, and the value of each of its nodes.

    Attributes of nodes: ``task`` (the callable; a node without one is an input), ``cost`` and
    ``kind`` as for ``TaskGraph.add``, ``constants`` (other arguments by position or name).
    Attribute of edges: ``arg``, the position or name of the argument; positions that are left open
    are given to edges without it, in the order of the edges.

    Args:
        network: Of networkx; ``MultiDiGraph`` if a task takes an object twice.

    Raises:
        GraphError: not directed, a cycle, two nodes that print alike, an argument twice or a
            position that is missing, or what ``TaskGraph.add`` raises.

    Examples:
        >>> import networkx as nx
        >>> from ggsched_task import TaskRunner, from_networkx
        >>> network = nx.DiGraph()
        >>> network.add_node("double", task=lambda x: 2 * x)
        >>> network.add_edge("x", "double")
        >>> graph, values = from_networkx(network)
        >>> with TaskRunner() as runner:
        ...     runner.run(graph, {"x": 4}, [values["double"]])
        [8]
    """
    import networkx as nx

    if not network.is_directed():
        raise GraphError("the network is not directed", where=str(network.name))
    graph = TaskGraph(str(network.name) or "tasks")
    made: dict[Hashable, Value] = {}
    try:
        order = list(nx.lexicographical_topological_sort(network, key=_position_in(network)))
    except nx.NetworkXUnfeasible as error:
        raise GraphError("the network has a cycle", where=graph.name) from error
    for key in order:
        attributes = network.nodes[key]
        function = attributes.get("task")
        if function is None:
            if network.in_degree(key):
                raise GraphError("an input cannot depend on anything", where=str(key))
            made[key] = graph.input(str(key))
            continue
        args, named = _arguments(network, key, made)
        made[key] = graph.add(
            function,
            *args,
            cost=attributes.get("cost", DEFAULT_COST),
            kind=attributes.get("kind", ANY_KIND),
            name=str(key),
            kwargs=named,
        )
    return graph, made


def to_networkx(graph: TaskGraph) -> "nx.MultiDiGraph[Any]":
    """Return a task graph with the attributes that ``from_networkx`` reads; nodes are names.

    Examples:
        >>> from ggsched_task import TaskGraph, to_networkx
        >>> g = TaskGraph()
        >>> y = g.add(abs, g.input("x"), name="y")
        >>> list(to_networkx(g).successors("x"))
        ['y']
    """
    import networkx as nx

    out: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=graph.name)
    names = {value.slot: name for name, value in graph.inputs.items()}
    names |= {slot: task.name for slot, task in graph.tasks.items()}
    for slot in sorted(names):
        task = graph.tasks.get(slot)
        if task is None:
            out.add_node(names[slot])
            continue
        given: dict[int | str, Any] = dict(enumerate(task.args))
        given.update(task.kwargs.items())
        constants = {k: v for k, v in given.items() if not isinstance(v, Value)}
        out.add_node(
            task.name, task=task.function, cost=task.cost, kind=task.kind, constants=constants
        )
        for arg, value in given.items():
            if isinstance(value, Value):
                out.add_edge(names[value.slot], task.name, arg=arg)
    return out


def _position_in(network: "nx.DiGraph[Any]") -> Any:
    numbers = {key: i for i, key in enumerate(network)}
    return numbers.__getitem__


def _arguments(
    network: "nx.DiGraph[Any]", key: Hashable, made: dict[Hashable, Value]
) -> tuple[list[Any], dict[str, Any]]:
    given: dict[int | str, Any] = dict(network.nodes[key].get("constants", {}))
    unnamed: list[Value] = []
    for source, _, attributes in network.in_edges(key, data=True):
        arg = attributes.get("arg")
        if arg is None:
            unnamed.append(made[source])
        elif arg in given:
            raise GraphError(f"argument {arg!r} is given twice", where=str(key))
        else:
            given[arg] = made[source]
    places = (i for i in range(len(given) + len(unnamed)) if i not in given)
    given |= dict(zip(places, unnamed, strict=False))
    positions = sorted(arg for arg in given if isinstance(arg, int))
    if positions != list(range(len(positions))):
        raise GraphError(f"positions {positions} of arguments leave one open", where=str(key))
    return [given[i] for i in positions], {k: v for k, v in given.items() if isinstance(k, str)}
