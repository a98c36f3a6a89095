"""Producers and consumers: one logic for asyncio and for threads (RocketMQ: ``client``)."""
