"""Orders over HTTP, with processes that fork: gunicorn --preload --workers 4 preloaded:app

This module makes the producer before gunicorn forks. In each worker the producer starts over, with connections of its
own, and closes when the worker ends.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import rocketcore as rmq

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

producer = rmq.Producer(group="preloaded", timeout=2.0)


def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        result = producer.send("orders", body, tag="created")
        status, answer = "201 Created", {"message": result.msg_id}
    except rmq.RocketError as error:
        status, answer = "503 Service Unavailable", {"error": str(error)}
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]
