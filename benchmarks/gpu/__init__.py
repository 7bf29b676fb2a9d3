"""What needs an NVIDIA GPU: the kit, mutants, models and measurements, by one command.

``make gpu`` runs everything and leaves a JSON for ``docs/measurements``;
``python -m benchmarks.gpu kit models -o found.json`` runs two parts.
"""
