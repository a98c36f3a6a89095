"""Send orders and consume them in one process: python examples/orders.py"""

from __future__ import annotations

import threading

import rocketcore as rmq

COUNT = 10


def main() -> None:
    done = threading.Semaphore(0)
    with rmq.LocalCluster() as cluster:
        with rmq.Admin(cluster.namesrv) as admin:
            admin.create_topic("orders", queues=4)

        consumer = rmq.PushConsumer(cluster.namesrv, group="billing", start_from="first")

        @consumer.subscribe("orders", tag="created || paid")
        def on_order(message: rmq.ReceivedMessage) -> None:
            print(f"{message.tag:<8} {message.keys[0]:<8} {message.json()}")
            done.release()

        with consumer, rmq.Producer(cluster.namesrv, group="shop") as producer:
            for number in range(COUNT):
                producer.send("orders", f'{{"id": {number}}}', tag="created", keys=f"order-{number}")
            for _ in range(COUNT):
                done.acquire()


if __name__ == "__main__":
    main()
