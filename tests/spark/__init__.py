"""The Spark data source: options, schemas, planning, and round trips through a session."""
