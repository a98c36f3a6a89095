"""A whole service on asyncio: python service.py

It takes orders, asks another service about each, and sends an invoice: up to 32 at a time, in one thread. On SIGTERM or
Ctrl-C it finishes the orders in hand. If it could not send an invoice, its order comes again.
"""

from __future__ import annotations

import asyncio
import logging

import rocketcore as rmq
from rocketcore import aio

log = logging.getLogger("service")


async def tax_of(amount: int) -> int:
    await asyncio.sleep(0.01)  # a request to another service
    return amount * 19 // 100


async def main() -> None:
    async with (
        aio.Producer(group="invoices") as producer,
        aio.PushConsumer(group="invoices", start_from="first", threads=32) as consumer,
    ):

        async def invoice(message: rmq.ReceivedMessage) -> None:
            order = message.json()
            total = order["amount"] + await tax_of(order["amount"])
            await producer.send("invoices", json={"order": order["id"], "total": total}, keys=order["id"])
            log.info("order %s: %d", order["id"], total)

        await consumer.subscribe("orders", handler=invoice)
        await consumer.run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    asyncio.run(main())
