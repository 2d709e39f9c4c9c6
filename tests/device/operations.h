// Operations: those of the CPU. Their results are written when the stream comes to it.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "allocators.h"

// Of ATen/autocast_mode.h, which includes every operator and takes longer to compile than all of this.
namespace at::autocast {
TORCH_API ScalarType get_autocast_dtype(DeviceType);
TORCH_API Tensor cached_cast(ScalarType, const Tensor&, DeviceType);
}

namespace {

at::Tensor stored(const at::Tensor& tensor) {  // the memory of it, seen by the host; not kept alive: a device does not
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

at::Tensor flagged(at::Tensor memory, const at::Tensor& as) {
  memory._set_conj(as.is_conj());
  memory._set_neg(as.is_neg());
  return memory;
}

at::Tensor seen_by_host(const at::Tensor& tensor) { return flagged(stored(tensor), tensor); }

void copy_bits(const at::Tensor& source, const at::Tensor& target) {
  c10::impl::ExcludeDispatchKeyGuard no_recording(c10::autograd_dispatch_keyset);
  target.copy_(source);
}

using NoRecording = c10::impl::ExcludeDispatchKeyGuard;

at::Tensor as_bytes(const at::Tensor& tensor) {  // each of its elements
  std::vector<int64_t> sizes(tensor.sizes().vec()), strides(tensor.strides().vec());
  for (auto& stride : strides) stride *= int64_t(tensor.itemsize());
  sizes.push_back(int64_t(tensor.itemsize()));
  strides.push_back(1);
  return at::from_blob(tensor.data_ptr(), sizes, strides, [kept = tensor](void*) {}, at::TensorOptions(at::kByte));
}

at::Tensor operand(const at::Tensor& tensor) {  // of the operation that this thread submits
  auto memory = stored(tensor);
  if (!tensor.numel()) return memory;
  NoRecording guard(c10::autograd_dispatch_keyset);
  auto& work = queue(current(tensor.device().index()));
  std::optional<at::Tensor> read;
  if (submission) {
    submission->place = current(tensor.device().index());
    submission->nbytes += tensor.nbytes();
  }
  while (!(read = work.foreseen(memory))) submission ? submission->wait(work) : work.drain();
  work.put([reader = operation, memory = as_bytes(memory), read = as_bytes(*read), place = current(tensor.device().index()), submitted = now()] {
    Timed timed{place, submitted};
    NoRecording guard(c10::autograd_dispatch_keyset);
    bool is_one_run = memory.is_non_overlapping_and_dense() && memory.strides() == read.strides();
    bool is_same = is_one_run ? !memcmp(memory.const_data_ptr(), read.const_data_ptr(), memory.numel()) : at::equal(memory, read);
    if (!is_same) reader->is_spoiled = true;
  });
  return flagged(read->alias(), tensor);
}

void write_result(const at::Tensor& result, const at::Tensor& target) {  // of the operation that this thread submits
  NoRecording guard(c10::autograd_dispatch_keyset);
  auto to = seen_by_host(target);
  auto begin = static_cast<const char*>(target.const_data_ptr());
  auto nbytes = target.storage().nbytes() - target.storage_offset() * target.itemsize();
  Writing writing{begin, begin + nbytes, false, {}};
  if (target.is_non_overlapping_and_dense() && !target.is_conj() && !target.is_neg()) {
    auto bytes = at::empty({int64_t(target.nbytes())}, at::kByte);
    bytes.view(to.scalar_type()).as_strided(to.sizes(), to.strides(), 0).copy_(result);
    writing = {begin, begin + target.nbytes(), true, bytes};
  }
  auto place = current(target.device().index());
  if (submission) submission->nbytes += target.nbytes();
  queue(place).put_writing(writing, [by = operation, result, to, place, submitted = now()] {
    Timed timed{place, submitted};
    if (!by->is_spoiled) return copy_bits(result, to);
    auto bytes = at::full({int64_t(result.numel() * result.itemsize())}, POISON, at::kByte);
    copy_bits(bytes.view(result.scalar_type()).view(result.sizes()), to);
  });
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  if (!target.numel()) return target;
  bool outward = source.is_privateuseone(), inward = target.is_privateuseone();
  auto device = (outward ? source : target).device().index();
  Place place = current(device);
  auto from = seen_by_host(source), to = seen_by_host(target);
  auto& work = queue(place);
  if (operation) {
    outward ? copy_bits(operand(source), target) : write_result(source, target);
    return target;
  }
  if (outward && inward && source.device() != target.device()) {
    queue(current(target.device().index())).drain();
    non_blocking = false;
  }
  if (outward && inward && source.device() == target.device()) {
    Submission submission;
    write_result(operand(source), target);
    return target;
  }
  Direction direction = outward ? TO_HOST : TO_DEVICE;
  double submitted = now();
  auto put = outward ? &Queue::put : &Queue::put_unknown;
  (work.*put)([=, &work] {
    // One half is read and written when the copy begins and the other one when it ends: whoever comes between is seen.
    bool has_halves = from.is_contiguous() && to.is_contiguous() && from.dtype() == to.dtype() && !from.is_conj() && !from.is_neg();
    int64_t half = has_halves ? from.numel() / 2 : 0;
    auto part = [&](int64_t start, int64_t length) { copy_bits(from.view(-1).narrow(0, start, length), to.view(-1).narrow(0, start, length)); };
    auto [begun, ended] = links[device][direction].cross(from.nbytes(), work.here(submitted), [&] { if (half) part(0, half); });
    half ? part(half, from.numel() - half) : copy_bits(from, to);
    work.clock = ended;
    note({device, direction, place.second, int64_t(from.nbytes()), submitted, begun, memory_bandwidth > 0 ? ended : now()});
  });
  bool runs_on_its_own = non_blocking && pinned.has((outward ? target : source).data_ptr());
  if (!runs_on_its_own) {
    ++host_waits;
    work.drain();
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  at::native::resize_(target, source.sizes());
  return copy_from(source, target, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  ++host_waits;
  queue(current(tensor.device().index())).drain();
  return seen_by_host(tensor).item();
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  Submission submission;
  at::native::cpu_fallback(op, stack);
}

// Operations that PyTorch leaves to each device, composed of those of the CPU.

struct Composed {  // what is made of host memory inside it appears on the device late, as results do
  c10::Device device;
  NoRecording guard{c10::autograd_dispatch_keyset};
  Submission submission;

  explicit Composed(c10::Device device) : device(device) {}
  at::Tensor result(const at::Tensor& made) const { return made.defined() ? made.to(device) : made; }
};

using Optional = const std::optional<at::Tensor>&;

std::optional<at::Tensor> maybe_operand(Optional tensor) {
  return tensor && tensor->defined() ? std::optional(operand(*tensor)) : std::nullopt;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, Optional bias, c10::SymIntArrayRef stride,
                       c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  Composed operation(input.device());
  return operation.result(at::convolution_symint(operand(input), operand(weight), maybe_operand(bias), stride, padding,
                                                 dilation, transposed, output_padding, groups));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride, c10::SymIntArrayRef padding,
    c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups, std::array<bool, 3> mask) {
  Composed operation(input.device());
  auto bias = mask[2] ? std::optional(std::vector<c10::SymInt>{gradient.sym_size(1)}) : std::nullopt;
  auto [first, second, third] = at::convolution_backward_symint(
      operand(gradient), operand(input), operand(weight), bias ? at::OptionalSymIntArrayRef(*bias) : std::nullopt, stride,
      padding, dilation, transposed, output_padding, groups, mask);
  return {operation.result(first), operation.result(second), operation.result(third)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& from_input, const at::Tensor& from_hidden,
                                                         const at::Tensor& cell, Optional input_bias, Optional hidden_bias) {
  Composed operation(cell.device());
  auto gates = operand(from_input) + operand(from_hidden);
  if (auto bias = maybe_operand(input_bias)) gates += *bias;
  if (auto bias = maybe_operand(hidden_bias)) gates += *bias;
  auto parts = gates.chunk(4, 1);
  auto enter = parts[0].sigmoid(), forget = parts[1].sigmoid(), fresh = parts[2].tanh(), leave = parts[3].sigmoid();
  auto next = forget * operand(cell) + enter * fresh;
  auto saved = at::cat({enter, forget, fresh, leave}, 1);
  return {operation.result(leave * next.tanh()), operation.result(next), operation.result(saved)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(Optional of_hidden, Optional of_cell, const at::Tensor& cell,
                                                                  const at::Tensor& next, const at::Tensor& saved, bool has_bias) {
  Composed operation(cell.device());
  auto parts = operand(saved).chunk(4, 1);
  auto enter = parts[0], forget = parts[1], fresh = parts[2], leave = parts[3];
  auto squashed = operand(next).tanh(), hidden = maybe_operand(of_hidden).value_or(at::zeros_like(squashed));
  auto of_next = hidden * leave * (1 - squashed * squashed);
  if (auto more = maybe_operand(of_cell)) of_next += *more;
  auto gates = at::cat({of_next * fresh * enter * (1 - enter), of_next * operand(cell) * forget * (1 - forget),
                        of_next * enter * (1 - fresh * fresh), hidden * squashed * leave * (1 - leave)}, 1);
  auto bias = has_bias ? gates.sum(0) : at::Tensor();
  return {operation.result(gates), operation.result(of_next * forget), operation.result(bias)};
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(at::Device(KIND)));
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(at::Device(KIND)));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &device_allocator,
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat), format);
}

at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  auto start = offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt;
  return at::native::as_strided_tensorimpl(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), start);
}

at::Tensor& set_source(at::Tensor& tensor, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  impl->set_sizes_and_strides(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  return tensor;
}

const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(tensor.device());
  queue(current(current_device)).drain();
  return at::native::resize_(tensor, C10_AS_INTARRAYREF_SLOW(size), format);
}

void record_stream(at::Tensor& tensor, at::Stream stream) { memory.use(tensor.storage().mutable_data(), stream.id()); }

at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef size) { return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(size)); }

at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

// Under autocast: in the type of its own, or in float32.

struct Cast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKey::AutocastPrivateUse1};
  at::ScalarType type;
  at::Tensor operator()(const at::Tensor& tensor) const { return at::autocast::cached_cast(type, tensor, KIND); }
};

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, Optional bias) {
  Cast lower{.type = at::autocast::get_autocast_dtype(KIND)};
  return at::linear(lower(input), lower(weight), bias && bias->defined() ? std::optional(lower(*bias)) : std::nullopt);
}

at::Tensor matmul(const at::Tensor& left, const at::Tensor& right) {
  Cast lower{.type = at::autocast::get_autocast_dtype(KIND)};
  return at::matmul(lower(left), lower(right));
}

at::Tensor softmax(const at::Tensor& tensor, int64_t dim, std::optional<at::ScalarType> type) {
  Cast single{.type = at::kFloat};
  return at::softmax(single(tensor), dim, type);
}

}  // namespace
