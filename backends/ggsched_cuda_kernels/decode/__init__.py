"""The small work of a step with few tokens: attention, rotations, routes, norms, sums."""
