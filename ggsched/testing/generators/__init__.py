"""Random graphs, machines and values for property tests."""
