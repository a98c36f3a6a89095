"""What all commands share: options and contexts, the connection, deadlines, errors, and the forms of output."""
