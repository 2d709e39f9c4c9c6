"""The simulated device does what devices do: late, in the order of its streams, and with exact memory."""

import pytest
import torch

from tests.device.simulated import COMPUTED, TO_DEVICE, TO_HOST, WAITED, Record, Simulated

BYTES = 1 << 20


def filled(value: float, device: str = "sim:0") -> torch.Tensor:
    """Return a mebibyte of one value on the device."""
    return torch.full((BYTES // 4,), value).to(device)


def test_memory_is_counted_to_the_byte_and_freed_at_once(device: Simulated) -> None:
    before = device.live()
    device.reset_peak()
    first, second = torch.empty(1001, dtype=torch.uint8, device="sim"), torch.empty(7, device="sim")
    assert device.live() - before == 1001 + 28
    del first
    assert device.live() - before == 28
    del second
    assert (device.live(), device.peak() - before) == (before, 1001 + 28)


def test_devices_have_memory_of_their_own(device: Simulated) -> None:
    before = device.live(0), device.live(1)
    other = filled(2.0, "sim:1")
    assert (device.live(0), device.live(1)) == (before[0], before[1] + BYTES)
    assert torch.equal((other + other).to("sim:0").cpu(), torch.full((BYTES // 4,), 4.0))


def test_beyond_the_limit_memory_is_refused_as_by_a_device(device: Simulated) -> None:
    with device.limited(device.live() + 1000):
        torch.empty(1000, dtype=torch.uint8, device="sim")
        with pytest.raises(torch.OutOfMemoryError, match="simulated device 0 is out of memory: 1001 bytes"):
            torch.empty(1001, dtype=torch.uint8, device="sim")


def test_pinned_memory_is_known_and_counted(device: Simulated) -> None:
    before = device.pinned()
    pinned = torch.empty(5000, dtype=torch.uint8, pin_memory=True)
    assert pinned[100:].is_pinned()
    assert not torch.empty(5000).is_pinned()
    assert device.pinned() - before == 5000
    del pinned
    assert device.pinned() == before


def test_a_copy_is_under_way_until_its_stream_has_come_to_it(device: Simulated) -> None:
    source, side = filled(3.0), torch.Stream(device="sim")
    target = torch.zeros(BYTES // 4, pin_memory=True)
    side.wait_event(torch.accelerator.current_stream().record_event())
    device.link(bandwidth=BYTES / 0.2)
    with side:
        target.copy_(source, non_blocking=True)
    end = side.record_event()
    assert not end.query()
    assert target[-1] == 0.0
    end.synchronize()
    assert target[-1] == 3.0
    (record,) = [record for record in device.records() if record.stream == side.stream_id]
    assert (record.device, record.direction, record.nbytes) == (0, TO_HOST, BYTES)
    assert record.ended - record.begun >= 0.2


def test_copies_each_way_use_a_link_of_their_own(device: Simulated) -> None:
    source, target = filled(1.0), torch.empty(BYTES // 4, device="sim")
    there, back = (torch.zeros(BYTES // 4, pin_memory=True) for _ in range(2))
    streams = [torch.Stream(device="sim") for _ in range(2)]
    device.link(bandwidth=BYTES / 0.1)
    with streams[0]:
        there.copy_(source, non_blocking=True)
    with streams[1]:
        target.copy_(back, non_blocking=True)
    for stream in streams:
        stream.synchronize()
    outward, inward = sorted(device.records()[-2:], key=lambda record: record.direction)
    assert (outward.direction, inward.direction) == (TO_HOST, TO_DEVICE)
    assert max(outward.begun, inward.begun) < min(outward.ended, inward.ended)


def test_copies_from_memory_that_is_not_pinned_wait(device: Simulated) -> None:
    device.link(latency=0.05)
    target = torch.zeros(8).copy_(torch.ones(8, device="sim"), non_blocking=True)
    assert target[0] == 1.0


def computed(device: Simulated) -> list[Record]:
    """Return the pieces of computation in the log."""
    torch.accelerator.synchronize("sim:0")
    return [record for record in device.records() if record.direction == COMPUTED]


def test_the_log_has_computations_where_it_is_asked_for(device: Simulated) -> None:
    x = filled(2.0)
    x + x
    assert not computed(device)
    with device.computations():
        x + x
        pieces = computed(device)
    assert pieces
    assert all(piece.submitted <= piece.begun <= piece.ended and piece.nbytes == 0 for piece in pieces)
    x + x
    assert not computed(device)


def test_to_wait_for_an_operand_is_no_computation(device: Simulated) -> None:
    x, fresh = filled(1.0), torch.ones(BYTES // 4, pin_memory=True)
    torch.accelerator.synchronize("sim:0")
    device.records()
    device.link(bandwidth=BYTES / 0.1)
    with device.computations():
        x.copy_(fresh, non_blocking=True)
        x + x
        torch.accelerator.synchronize("sim:0")
    records = device.records()
    (copy,) = [record for record in records if record.direction == TO_DEVICE]
    pieces = [record for record in records if record.direction == COMPUTED]
    assert pieces[-1].begun >= copy.ended
    assert not [piece for piece in pieces if piece.begun < (copy.begun + copy.ended) / 2 < piece.ended]


def test_operations_take_what_memory_needs_while_the_program_goes_on(device: Simulated) -> None:
    x = filled(2.0)
    torch.accelerator.synchronize("sim:0")
    device.records()
    device.memory(bandwidth=3 * BYTES / 0.2)  # two operands and a result
    with device.computations():
        total = x + x
        end = torch.accelerator.current_stream().record_event()
        assert not end.query()
        end.synchronize()
    spans = [(piece.begun, piece.ended) for piece in computed(device)]
    assert max(ended for _, ended in spans) - min(begun for begun, _ in spans) >= 0.2
    assert total.cpu()[-1] == 4.0


def test_the_log_has_what_a_stream_waited_for(device: Simulated) -> None:
    side, target = torch.Stream(device="sim"), torch.zeros(BYTES // 4, device="sim")
    fresh = torch.ones(BYTES // 4, pin_memory=True)
    torch.accelerator.synchronize("sim:0")
    device.records()
    device.link(bandwidth=BYTES / 0.1)
    with device.computations():
        with side:
            target.copy_(fresh, non_blocking=True)
        torch.accelerator.current_stream().wait_event(side.record_event())
        assert (target + target).cpu()[-1] == 2.0
    records = device.records()
    (wait,) = [record for record in records if record.direction == WAITED]
    (copy,) = [record for record in records if record.direction == TO_DEVICE]
    assert (wait.stream, copy.stream) == (0, side.stream_id)
    assert wait.ended >= copy.ended


def late(device: Simulated, *, is_ordered: bool) -> float:
    """Return what another stream reads of a result that is not written yet."""
    main, side = torch.accelerator.current_stream(), torch.Stream(device="sim")
    slow, target = torch.zeros(BYTES // 4, pin_memory=True), torch.zeros(4, pin_memory=True)
    before, fresh = filled(1.0), torch.full((4,), 8.0, pin_memory=True)
    result = torch.full((4,), 7.0, device="sim")
    main.synchronize()
    device.link(bandwidth=BYTES / 0.3)
    before.copy_(slow, non_blocking=True)
    result.copy_(fresh, non_blocking=True)
    if is_ordered:
        side.wait_event(main.record_event())
    with side:
        target.copy_(result, non_blocking=True)
    side.synchronize()
    main.synchronize()
    return target[0].item()


def test_streams_are_ordered_by_events_alone(device: Simulated) -> None:
    assert late(device, is_ordered=True) == 8.0
    assert late(device, is_ordered=False) == 7.0


def reread(device: Simulated, *, is_recorded: bool) -> float:
    """Return what a copy on another stream reads of memory that was freed meanwhile."""
    side, source = torch.Stream(device="sim"), filled(5.0)
    slow, target = (torch.zeros(BYTES // 4, pin_memory=True) for _ in range(2))
    other = filled(1.0)
    side.wait_event(torch.accelerator.current_stream().record_event())
    device.link(bandwidth=BYTES / 0.1)
    with side:
        slow.copy_(other, non_blocking=True)
        target.copy_(source, non_blocking=True)
    if is_recorded:
        source.record_stream(side)
    live = device.live()
    del source
    assert (device.live() < live) == (not is_recorded)
    torch.accelerator.current_stream().synchronize()
    side.synchronize()
    return target[0].item()


def test_freed_memory_is_poisoned_in_the_order_of_the_streams_that_use_it(device: Simulated) -> None:
    assert reread(device, is_recorded=True) == 5.0
    poisoned = reread(device, is_recorded=False)
    assert poisoned != poisoned


def test_operations_read_when_their_stream_comes_to_them(device: Simulated) -> None:
    source, side = filled(5.0), torch.Stream(device="sim")
    slow, fresh = (torch.full((BYTES // 4,), 1.0, pin_memory=True) for _ in range(2))
    held = torch.empty(BYTES // 4, device="sim")
    torch.accelerator.synchronize("sim")
    device.link(bandwidth=BYTES / 0.1)
    slow.copy_(held, non_blocking=True)
    doubled = source * 2.0
    with side:
        source.copy_(fresh, non_blocking=True)  # on the other link, and done before
    side.synchronize()
    poisoned = doubled.cpu()[-1].item()
    assert poisoned != poisoned
    assert (source * 2.0).cpu()[-1].item() == 2.0
