"""The conformance kit: the duties of every backend, codec and store, as test classes to subclass.

Needs the extra ``testing`` (pytest). A third party's test is a few lines::

    from tensorstash.testing import CodecSuite


    class TestMyCodec(CodecSuite):
        codec = MyCodec(level=3)

Labs are in modules of their own, since they import their framework: ``tensorstash.testing.labs.reference``,
``.torch`` and ``.paddle``.
"""

from tensorstash.errors import MissingDependencyError

try:
    from tensorstash.testing.backend_suite import BackendSuite
    from tensorstash.testing.codec_suite import CodecSuite, Golden
    from tensorstash.testing.faults import FaultyCodec, FaultyStore, Watched
    from tensorstash.testing.lab import Lab, Layout
    from tensorstash.testing.store_suite import StoreSuite
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("_pytest", "pytest"):
        raise
    raise MissingDependencyError(
        f"tensorstash.testing needs {error.name}, which is not installed; pip install 'tensorstash[testing]'"
    ) from error

__all__ = [
    "BackendSuite",
    "CodecSuite",
    "FaultyCodec",
    "FaultyStore",
    "Golden",
    "Lab",
    "Layout",
    "StoreSuite",
    "Watched",
]
