"""Apache RocketMQ and rocketcore, each as the other's client and server."""
