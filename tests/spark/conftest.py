"""What the tests of Spark need of the PySpark that is installed."""

from __future__ import annotations

from rocketcore.spark.stream_reader import HAS_LIMITS

# Most tests of the streaming source are about limits, or call it as PySpark 4.2 and newer do. On 4.1 a query of Spark
# shows it (test_standalone.py).
collect_ignore = [] if HAS_LIMITS else ["test_stream_source.py", "test_stream_source_faults.py"]
