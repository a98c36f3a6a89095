"""Steps of an order, one after the other: python ordered.py

Messages of one message group are in one queue, and the worker handles them in the order you sent them. It tries a
failed step again before the next one of its queue. Other queues go on.
"""

from __future__ import annotations

import rocketcore as rmq

STEPS = ("created", "paid", "shipped")
done: dict[str, list[str]] = {}
worker = rmq.PushConsumer(group="steps", start_from="first", ordered=True)


@worker.subscribe("order-steps")
def take(message: rmq.ReceivedMessage) -> None:
    order, step = message.keys[0], message.text()
    if step == "paid" and message.reconsume_times == 0:
        raise rmq.RetryLater(delay=1)  # the bank does not answer: this order and its next steps wait
    done.setdefault(order, []).append(step)
    print(f"{order} {step}\n", end="", flush=True)  # one write: threads share stdout


def main() -> None:
    with rmq.Producer(group="shop") as producer:
        for order in ("o-1", "o-2"):
            for step in STEPS:
                producer.send("order-steps", step, keys=order, message_group=order)
    worker.run()


if __name__ == "__main__":
    main()
