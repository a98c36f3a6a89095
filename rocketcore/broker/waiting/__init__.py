"""Pulls and POPs that found nothing and wait: what they share, and long polling of pulls."""
