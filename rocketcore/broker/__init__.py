"""A RocketMQ broker: durable store, request processors, registration with name servers."""
