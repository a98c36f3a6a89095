"""POP: messages handed out for a time and acknowledged one by one, from the requests to the journal."""
