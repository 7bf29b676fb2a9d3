"""What importers share: making nodes, folding constants, merging nodes, graphs for given shapes."""
