"""One module per family of requests: decode the header, call state, store and services, fill the response."""
