"""Rivals, each in a process of its own: Apache RocketMQ's servers and Java client; and the load generator."""
