"""The reference interpreter: one node after another in numpy, with exact dequantisation.

    outputs = run_oracle(graph, values)

It uses no kernel of a backend. Results of a backend are compared with it; see rule LCH-3 for the
tolerances. The backend ``cpu`` computes nodes for which it has no kernel by the same functions, and
counts them; there the comparison says nothing about the arithmetic.
"""

from ggsched.backend.packed import dequantize, quantize
from ggsched_testing.oracle.interpreter import run_oracle

__all__ = ["dequantize", "quantize", "run_oracle"]
