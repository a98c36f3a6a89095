"""Commands that ask and change a cluster: topics, groups, offsets, servers, clients, accounts, ``doctor``, ``top``."""
