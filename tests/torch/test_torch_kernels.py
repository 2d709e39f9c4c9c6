"""What kernels get and give: the dense elements of any layout, and any layout made of dense elements."""

import pytest
import torch

from tensorstash.backends.torch.backend import TorchBackend
from tensorstash.testing.labs.torch import TorchLab
from tensorstash.testing.layouts import LAYOUTS, assert_same_bits

BACKEND, LAB = TorchBackend(), TorchLab()


@pytest.mark.parametrize("adopt", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("layout", [name for name, layout in LAYOUTS.items() if not layout.is_reversed])
def test_dense_elements_and_the_layout_they_came_from(layout: str, dtype: str, adopt: bool) -> None:
    for device in LAB.devices:
        tensor = LAYOUTS[layout].of(LAB, dtype, device)
        spec = BACKEND.spec(tensor)
        dense = BACKEND.layouts.dense(tensor, spec)
        assert dense.is_contiguous()
        assert BACKEND.spec(dense).shape == spec.dense().shape
        back = BACKEND.layouts.restored(dense.clone(), spec, adopt=adopt)
        assert LAB.layout(back) == LAB.layout(tensor)
        assert_same_bits(LAB.bits(back), LAB.bits(tensor), layout)
        assert back.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()


def test_memory_of_dense_elements_is_adopted_only_where_that_is_allowed() -> None:
    dense = torch.randn(36)[:35]
    spec = BACKEND.spec(dense.reshape(5, 7).t())
    assert BACKEND.layouts.restored(dense, spec, adopt=True).data_ptr() == dense.data_ptr()
    assert BACKEND.layouts.restored(dense, spec, adopt=False).data_ptr() != dense.data_ptr()
    elsewhere = BACKEND.layouts.restored(dense, BACKEND.spec(torch.randn(36)[1:]), adopt=True)
    assert elsewhere.data_ptr() != dense.data_ptr()
    assert torch.equal(elsewhere, dense)


def test_a_payload_has_the_type_and_shape_of_its_spec_and_shares_host_memory() -> None:
    tensor = torch.randn(6, 4).to(torch.bfloat16)
    spec = BACKEND.spec(tensor)
    data = BACKEND.to_host(tensor, spec)
    payload = BACKEND.kernels.payload(data, spec)
    assert torch.equal(payload, tensor)
    assert payload.data_ptr() == tensor.data_ptr()
