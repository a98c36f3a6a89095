"""A message and a row of a database, both or neither: python payments.py bank.db p-1 250

The broker keeps the message back until the database has committed the payment. If this process dies in between, the
broker asks any producer of the group, and ``check`` looks into the database.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import rocketcore as rmq


def connect(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, amount INTEGER CHECK (amount > 0))")
    return database


def producer_of(path: str) -> rmq.Producer:
    def check(half: rmq.ReceivedMessage) -> rmq.TransactionState:
        with closing(connect(path)) as database:
            paid = database.execute("SELECT 1 FROM payments WHERE id = ?", (half.keys[0],)).fetchone()
        return rmq.TransactionState.COMMIT if paid else rmq.TransactionState.ROLLBACK

    return rmq.Producer(group="payments", checker=check)


def pay(path: str, payment: str, amount: int) -> None:
    message = rmq.Message("payments", json={"id": payment, "amount": amount}, keys=payment)
    with closing(connect(path)) as database, producer_of(path) as producer, producer.transaction(message), database:
        # The database commits first, as its block is the innermost; an error rolls back both.
        database.execute("INSERT INTO payments VALUES (?, ?)", (payment, amount))


if __name__ == "__main__":
    pay(sys.argv[1], sys.argv[2], int(sys.argv[3]))
