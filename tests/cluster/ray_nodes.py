"""Ray clusters of several nodes on this host."""

import os
from contextlib import contextmanager

VARIABLES = {
    "GGSCHED_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False}


@contextmanager
def cluster_of(*names):
    """Start nodes of these names, and connect to them; everything is ended in the end."""
    import ray
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ.update(VARIABLES)
    head, *others = names
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "node_name": head})
    try:
        for name in others:
            add_node(cluster, name)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.clear()
        os.environ.update(before)


def add_node(cluster, name):
    """Start another node."""
    node = {key: value for key, value in NODE.items() if key != "include_dashboard"}
    return cluster.add_node(**node, node_name=name)


@contextmanager
def ray_nodes(*names):
    """Yield a function that returns what starts workers on all nodes."""
    from ggsched_cluster.members import Start
    from ggsched_ray.members import node_address, started

    with cluster_of(*names):
        yield lambda: Start("ray", lambda token: started(token, ()), node_address())
