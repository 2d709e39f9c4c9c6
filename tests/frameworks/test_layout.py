"""Every layout of every element type goes to the host and comes back as it was; memory is viewed, adopted or copied."""

import threading

import numpy as np
import pytest

from tensorstash.host.arrays import borrowed
from tensorstash.testing.layouts import LAYOUTS as KNOWN
from tensorstash.testing.layouts import Strided
from tests.frameworks.conftest import Framework

LAYOUTS = {
    **{name: layout for name, layout in KNOWN.items() if 0 not in layout.shape},
    "overlap that no dimension explains": Strided((2, 2, 3), (3, 2, 2)),
    "gaps": Strided((3, 4), (9, 2), 1),
    "reversed, expanded and with gaps": Strided((2, 3, 4), (0, -9, 2), 19),
}


def assert_round_trip(framework: Framework, tensor: object) -> None:
    lab, backend = framework.lab, framework.backend
    spec, before = backend.spec(tensor), (lab.layout(tensor), lab.bits(tensor).tobytes())
    version = backend.version(tensor)
    host = backend.to_host(tensor, spec)
    assert (host.shape, host.dtype.name) == (spec.dense().shape, spec.carrier)
    assert host.flags.c_contiguous
    for data in (borrowed(host), host.copy()):
        back = backend.from_host(data, spec)
        assert (lab.layout(back), lab.bits(back).tobytes()) == before
        assert not lab.requires_grad(back)
    assert backend.version(tensor) == version


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_every_dtype_comes_back(framework: Framework, layout: str) -> None:
    if LAYOUTS[layout].is_reversed and not framework.lab.reverses:
        with pytest.raises(RuntimeError):
            LAYOUTS[layout].of(framework.lab, "float32", "cpu")
        return
    for dtype in framework.lab.dtypes:
        assert_round_trip(framework, LAYOUTS[layout].of(framework.lab, dtype, "cpu"))


@pytest.mark.parametrize("elements", [1, 2, 3, 5, 15])
def test_the_address_modulo_64_comes_back(framework: Framework, elements: int) -> None:
    lab = framework.lab
    tensor = lab.rows(lab.tensor(np.arange(64, dtype=np.float32)), elements, 64)
    assert lab.address(tensor) % 64 == 4 * elements
    assert_round_trip(framework, tensor)


def test_dense_host_memory_is_viewed_and_gaps_are_left_out(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    dense = lab.transpose(lab.tensor(np.ones((4, 6), np.float32)))
    host = backend.to_host(dense, backend.spec(dense))
    assert host.ctypes.data == lab.address(dense)
    assert not host.flags.writeable
    gaps = lab.columns(lab.tensor(np.ones((48, 96), np.float32)), 0, 48)
    host = backend.to_host(gaps, backend.spec(gaps))
    assert host.nbytes == 48 * 48 * 4
    assert host.flags.writeable
    expanded = lab.as_strided(lab.tensor(np.ones(5, np.float32)), (1000, 5), (0, 1), 0)
    assert backend.to_host(expanded, backend.spec(expanded)).shape == (5,)


def test_private_memory_is_adopted_where_it_fits_and_borrowed_memory_never(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    tensor = lab.tensor(np.ones((64, 3), np.float32))
    spec = backend.spec(tensor)
    memory = np.ones(4096, np.uint8)
    start = (spec.alignment - memory.ctypes.data) % 64
    private = memory[start : start + spec.nbytes].view(np.float32).reshape(64, 3)
    assert lab.address(backend.from_host(private, spec)) == private.ctypes.data
    lab.write_unversioned(backend.from_host(backend.to_host(tensor, spec), spec), 7.0)
    assert (lab.bits(tensor) == 1).all()
    immutable = np.frombuffer(lab.bits(tensor).tobytes(), np.float32).reshape(64, 3)
    lab.write_unversioned(backend.from_host(immutable, spec), 7.0)
    assert (immutable == 1).all()


def test_specs_of_one_layout_are_one_object(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    first, second = (lab.tensor(np.ones((8, 16), np.float32)) for _ in range(2))
    assert backend.spec(first) is backend.spec(second)
    assert backend.spec(first) is not backend.spec(lab.transpose(first))


def test_threads_rebuild_one_payload_at_once(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    tensor = lab.transpose(lab.tensor(np.arange(64 * 33, dtype=np.float32).reshape(64, 33)))
    spec, bits, layout = backend.spec(tensor), lab.bits(tensor).tobytes(), lab.layout(tensor)
    data = borrowed(backend.to_host(tensor, spec).copy())
    start, good = threading.Barrier(4), []

    def rebuild() -> None:
        start.wait()
        for _ in range(50):
            back = backend.from_host(data, spec)
            good.append(lab.bits(back).tobytes() == bits and lab.layout(back) == layout)
            lab.write_unversioned(back, 0.0)

    threads = [threading.Thread(target=rebuild) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good == [True] * 200


def test_a_token_of_a_storage_is_shared_by_views_and_never_used_again(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    tensor = lab.tensor(np.ones((4, 8), np.float32))
    with backend.hooks(lambda tensor: None, lambda packed: None):
        token, offset = backend.storage(tensor)
        view_token, view_offset = backend.storage(lab.rows(tensor, 1, 4))
        assert (token, offset) == (view_token, 0)
        assert view_offset == 32
        tokens = {token} | {backend.storage(lab.tensor(np.ones((4, 8), np.float32)))[0] for _ in range(100)}
        assert len(tokens) == 101


def test_the_version_is_shared_by_views_and_aliases(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    tensor = lab.tensor(np.ones((4, 8), np.float32))
    alias, view = backend.alias(tensor), lab.transpose(lab.rows(tensor, 1, 4))
    before = backend.version(tensor)
    lab.add_(tensor, 1.0)
    assert backend.version(alias) == backend.version(view) == backend.version(tensor) == before + 1
    assert lab.address(alias) == lab.address(tensor)
