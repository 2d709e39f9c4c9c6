"""Memory that goes to the host and comes back is viewed, adopted or copied; specs and tokens are shared."""

import numpy as np

from tests.frameworks.conftest import Framework


def test_dense_host_memory_is_viewed_and_gaps_are_left_out(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    dense = lab.tensor(np.ones((4, 6), np.float32)).T
    host = backend.to_host(dense, backend.spec(dense))
    assert host.ctypes.data == lab.address(dense)
    assert not host.flags.writeable
    gaps = lab.tensor(np.ones((48, 96), np.float32))[:, :48]
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
    assert backend.spec(first) is not backend.spec(first.T)


def test_a_token_of_a_storage_is_shared_by_views_and_never_used_again(framework: Framework) -> None:
    lab, backend = framework.lab, framework.backend
    tensor = lab.tensor(np.ones((4, 8), np.float32))
    with backend.hooks(lambda tensor: None, lambda packed: None):
        token, offset = backend.storage(tensor)
        view_token, view_offset = backend.storage(tensor[1:4])
        assert (token, offset) == (view_token, 0)
        assert view_offset == 32
        tokens = {token} | {backend.storage(lab.tensor(np.ones((4, 8), np.float32)))[0] for _ in range(100)}
        assert len(tokens) == 101
