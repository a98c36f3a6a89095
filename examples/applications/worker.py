"""A worker: python worker.py

Handlers run on eight threads. On SIGTERM or Ctrl-C the worker lets its handlers finish, stores how far the group is and
leaves it. The next worker continues there. If a worker is killed, or a handler raises, messages come again: use the
order's id to tell which work is done.
"""

from __future__ import annotations

import logging

import rocketcore as rmq

log = logging.getLogger("worker")
worker = rmq.PushConsumer(group="billing", start_from="first", threads=8)


@worker.subscribe("orders", tag="created || paid")
def bill(message: rmq.ReceivedMessage) -> None:
    order = message.json()
    if order["amount"] < 0:
        log.error("order %s is refused: its amount is negative", order["id"])
        return  # done: another try would not help
    log.info("billed %s: %d", order["id"], order["amount"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    worker.run()
