"""A codec and a store for tensorstash."""
