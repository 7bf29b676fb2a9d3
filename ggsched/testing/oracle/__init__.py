"""The reference interpreter: one node after another in numpy, with exact dequantisation.

    outputs = run_oracle(graph, values)

It shares no code with backends. Results of a backend are compared with it; see rule LCH-3 for the
tolerances.
"""

from ggsched.testing.oracle.dequant import dequantize, quantize
from ggsched.testing.oracle.interpreter import run_oracle

__all__ = ["dequantize", "quantize", "run_oracle"]
