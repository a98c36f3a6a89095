"""The name server's behaviour, checked by one code against ours and against Apache's."""
