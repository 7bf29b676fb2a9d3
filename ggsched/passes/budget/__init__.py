"""Budget: waits that are added to save memory, the cheapest first."""
