"""A worker: python worker.py

Handlers run on eight threads. SIGTERM and Ctrl-C let those that run finish, store how far the group is and leave it:
the next worker goes on behind. One that is killed leaves what it did not store to come again: a handler should know
what it has done, by the order's id. A handler that raises gets its message again.
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
        return  # handled: it does not get better by being tried again
    log.info("billed %s: %d", order["id"], order["amount"])


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    worker.run()
