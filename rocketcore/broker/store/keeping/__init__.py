"""What the store does beside writes and reads: it saves and repairs queues, and deletes old files and topics."""
