"""Administration: topics, groups, offsets, brokers and name servers of a cluster."""
