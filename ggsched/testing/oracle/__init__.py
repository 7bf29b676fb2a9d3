"""The reference interpreter: one node after another, in numpy."""
