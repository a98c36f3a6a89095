"""Questions and answers: python quotes.py serve, and python quotes.py ask ACME INIT

A request waits for its reply until its timeout. Several may wait side by side. If no server runs, or it is slow, the
request raises RequestTimeout.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import rocketcore as rmq

PRICES = {"ACME": 12.5, "INIT": 99.0}
server = rmq.PushConsumer(group="quotes")


@server.subscribe("quotes")
def answer(message: rmq.ReceivedMessage) -> None:
    symbol = message.text()
    message.reply(json={"symbol": symbol, "price": PRICES.get(symbol)})


def ask(symbols: list[str], timeout: float = 10.0) -> None:
    with rmq.Producer(group="traders") as producer, ThreadPoolExecutor(len(symbols)) as pool:

        def price_of(symbol: str) -> str:
            try:
                return str(producer.request("quotes", symbol, timeout=timeout).json()["price"])
            except rmq.RequestTimeout:
                return "nobody answered"

        for symbol, price in zip(symbols, pool.map(price_of, symbols), strict=True):
            print(symbol, price)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        server.run()
    else:
        ask(sys.argv[2:])
