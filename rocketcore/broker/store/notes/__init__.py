"""What the store writes down beside log and queues, so that a start reads less: small files with checksums."""
