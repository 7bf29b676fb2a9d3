"""Cost: what nodes, commands and whole steps are predicted to take."""
