"""The bandwidth of weights is measured with weights that no cache holds."""

import pytest

from ggsched.ir.dtype import BF16
from ggsched_calibrate import device_rates
from ggsched_calibrate.device_rates import measure_product
from ggsched_calibrate.timing import Allowance
from ggsched_calibrate.workload import Bench, products
from ggsched_cpu import open_backend


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_spent_allowance_leaves_the_weights_large(monkeypatch, seconds):
    shapes = []

    def noted(count, rows, width, columns, dtype):
        shapes.append((count, rows, width, columns))
        return products(count, rows, width, columns, dtype)

    monkeypatch.setattr(device_rates, "products", noted)
    bench = Bench(open_backend().open_device(0))
    try:
        rate = measure_product(bench, bench.stream(), BF16, Allowance(seconds))
    finally:
        bench.close()
    count, rows, width, _ = [shape for shape in shapes if shape[3] == 1][-1]
    assert count * rows * BF16.row_nbytes(width) >= 16 << 20
    assert rate.bandwidth > 0
