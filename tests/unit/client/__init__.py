"""Tests of the client without sockets."""
