from importlib.metadata import PackageNotFoundError, distribution

try:
    distribution("tensorstash-pages")
except PackageNotFoundError:
    # These tests are of an installed package; tests/test_plugin.py installs it and runs them.
    collect_ignore_glob = ["*"]
