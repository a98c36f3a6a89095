"""Orders over HTTP (FastAPI): uvicorn web:app

The process has one producer, which connects with the first order. So the service starts while the cluster is down, and
answers 503 until it is up. It closes the producer after the last request.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import fastapi
from pydantic import BaseModel

import rocketcore as rmq
from rocketcore import aio


class Order(BaseModel):
    id: str
    amount: int


@asynccontextmanager
async def life(app: fastapi.FastAPI) -> AsyncIterator[None]:
    async with aio.Producer(group="web", timeout=2.0) as producer:
        app.state.producer = producer
        yield


app = fastapi.FastAPI(lifespan=life)


def producer_of(request: fastapi.Request) -> aio.Producer:
    producer: aio.Producer = request.app.state.producer
    return producer


@app.post("/orders", status_code=201)
async def create(order: Order, producer: Annotated[aio.Producer, fastapi.Depends(producer_of)]) -> dict[str, str]:
    try:
        result = await producer.send("orders", json=order.model_dump(), tag="created", keys=order.id)
    except rmq.RocketError as error:
        raise fastapi.HTTPException(503, f"the order was not taken: {error}") from error
    return {"id": order.id, "message": result.msg_id}
