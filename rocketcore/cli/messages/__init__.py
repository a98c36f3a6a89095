"""Commands that move messages: ``produce``, ``consume``, ``tail``, ``message …``, ``dlq …``, and their files."""
