"""An outbox: your database stores data and message in one transaction: python outbox.py shop.db

The database stores an order and its message together, or neither. The relay sends the messages and then deletes them.
If it dies in between, it sends them again under the same keys, so that consumers can tell. The cluster may be down.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
import threading
from contextlib import closing

import rocketcore as rmq

TABLES = """
    CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, amount INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY, topic TEXT, key TEXT, body TEXT);
"""


def place_order(database: sqlite3.Connection, order_id: str, amount: int) -> None:
    """Store an order and its message. Your application calls this."""
    body = json.dumps({"id": order_id, "amount": amount})
    with database:  # a transaction
        database.execute("INSERT INTO orders VALUES (?, ?)", (order_id, amount))
        database.execute("INSERT INTO outbox (topic, key, body) VALUES ('orders', ?, ?)", (order_id, body))


def relay(database: sqlite3.Connection, producer: rmq.Producer) -> int:
    """Send the messages that wait, oldest first, and return how many there were."""
    rows = database.execute("SELECT number, topic, key, body FROM outbox ORDER BY number LIMIT 100").fetchall()
    producer.send_batch([rmq.Message(topic, body, keys=key) for _, topic, key, body in rows])
    with database:
        database.executemany("DELETE FROM outbox WHERE number = ?", [(number,) for number, *_ in rows])
    return len(rows)


def main(path: str) -> None:
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with closing(sqlite3.connect(path)) as database, rmq.Producer(group="outbox") as producer:
        database.executescript(TABLES)
        while not ended.is_set():
            try:
                sent = relay(database, producer)
            except rmq.RocketError as error:
                print(f"not sent, and tried again: {error}", file=sys.stderr)
                sent = 0
            if not sent:
                ended.wait(1)


if __name__ == "__main__":
    main(sys.argv[1])
