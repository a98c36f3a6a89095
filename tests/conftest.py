"""The fixtures of all tests, one subject a file."""

pytest_plugins = [
    "tests.fixtures.examples",
    "tests.fixtures.alone",
    "tests.fixtures.signals",
    "tests.fixtures.outcomes",
    "tests.fixtures.shares",
    "tests.fixtures.java",
    "tests.fixtures.vectors",
    "tests.fixtures.spark",
    "tests.fixtures.standalone",
    "tests.fixtures.processes",
    "tests.fixtures.apache",
    "tests.fixtures.cluster",
    "tests.fixtures.name_servers",
    "tests.fixtures.brokers",
    "tests.fixtures.addresses",
    "tests.fixtures.loops",
    "tests.fixtures.threads",
]
