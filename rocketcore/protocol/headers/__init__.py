"""One declaration per request and response header, named as Java names its class; a module per subject."""
