"""One declaration per JSON body, named as Java names its class; a module per subject."""
