"""The tests of rocketcore."""
