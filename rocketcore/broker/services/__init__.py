"""Background work of the broker: delayed delivery and held pulls."""
