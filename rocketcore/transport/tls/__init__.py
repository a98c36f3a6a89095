"""TLS: settings and certificates, the sans-IO session, and its transports for loops and for blocking sockets."""
