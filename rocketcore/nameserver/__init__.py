"""The name server: which broker serves which topic, kept in memory, told by the brokers themselves."""
