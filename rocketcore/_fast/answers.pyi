from rocketcore._fast.reactor import Responder

class ReadyAnswers(Responder):
    enabled: bool
    def __init__(
        self,
        code: int,
        field: bytes,
        without: bytes,
        answers: dict[bytes, bytes],
        version: int,
        limit: int = 16_777_216,
    ) -> None: ...
