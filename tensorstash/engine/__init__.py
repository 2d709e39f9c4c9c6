"""The machine behind the hooks: it runs a policy on a backend for one scope."""
