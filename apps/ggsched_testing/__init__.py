"""What proves the rest right: a reference interpreter, graph strategies, a hostile device."""
