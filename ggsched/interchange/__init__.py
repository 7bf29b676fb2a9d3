"""To and from other libraries: DLPack, ``__array_interface__``, safetensors, networkx, DOT."""
