"""Benchmarks: kernels with pytest-benchmark (``test_*.py``), whole systems side by side (``side_by_side.py``)."""
