"""The remoting protocol without sockets, files, clocks or threads: commands, headers, bodies, messages."""
