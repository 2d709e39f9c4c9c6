// A custom device of Paddle for tests, named "sim": host memory that is overwritten when it is freed.
//
// Every operator runs on the host, and its result is copied to the device; the device has kernels of its own only for what is
// not contiguous, as those of other makers have, and without which Paddle refuses to write there. Nothing is asynchronous.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "paddle/phi/backends/device_ext.h"
#include "paddle/phi/capi/all.h"

namespace sim {

constexpr size_t kAlignment = 256;
constexpr size_t kTotalBytes = size_t{8} << 30;
constexpr unsigned char kFreed = 0xAB;

C_Status succeed() { return C_SUCCESS; }
C_Status with_device(const C_Device) { return C_SUCCESS; }
C_Status with_stream(const C_Device, C_Stream) { return C_SUCCESS; }
C_Status with_event(const C_Device, C_Event) { return C_SUCCESS; }
C_Status with_both(const C_Device, C_Stream, C_Event) { return C_SUCCESS; }

C_Status current_device(const C_Device device) {
  device->id = 0;
  return C_SUCCESS;
}
C_Status device_count(size_t* count) {
  *count = 1;
  return C_SUCCESS;
}
C_Status device_list(size_t* devices) {
  devices[0] = 0;
  return C_SUCCESS;
}
C_Status memory_stats(const C_Device, size_t* total, size_t* free) {
  *total = *free = kTotalBytes;
  return C_SUCCESS;
}
C_Status least_chunk(const C_Device, size_t* nbytes) {
  *nbytes = kAlignment;
  return C_SUCCESS;
}
C_Status no_padding(const C_Device, size_t* nbytes) {
  *nbytes = 0;
  return C_SUCCESS;
}

// Memory is handed out again, but to this device alone. Nothing static is ever destroyed, since threads may still run.
auto& freed = *new std::map<size_t, std::vector<void*>>;
auto& freed_lock = *new std::mutex;

C_Status allocate_of_host(const C_Device, void** memory, size_t nbytes) {
  return posix_memalign(memory, kAlignment, nbytes) == 0 ? C_SUCCESS : C_FAILED;
}
C_Status release_of_host(const C_Device, void* memory, size_t) {
  std::free(memory);
  return C_SUCCESS;
}
C_Status allocate(const C_Device device, void** memory, size_t nbytes) {
  std::lock_guard<std::mutex> held(freed_lock);
  auto& same = freed[nbytes];
  if (same.empty()) return allocate_of_host(device, memory, nbytes);
  *memory = same.back();
  same.pop_back();
  return C_SUCCESS;
}
C_Status release(const C_Device, void* memory, size_t nbytes) {
  std::lock_guard<std::mutex> held(freed_lock);
  std::memset(memory, kFreed, nbytes);
  freed[nbytes].push_back(memory);
  return C_SUCCESS;
}
C_Status fill(const C_Device, void* memory, unsigned char value, size_t nbytes) {
  std::memset(memory, value, nbytes);
  return C_SUCCESS;
}
C_Status copy(const C_Device, void* target, const void* source, size_t nbytes) {
  std::memcpy(target, source, nbytes);
  return C_SUCCESS;
}
C_Status copy_in_stream(const C_Device device, C_Stream, void* target, const void* source, size_t nbytes) {
  return copy(device, target, source, nbytes);
}
C_Status create_stream(const C_Device, C_Stream* stream) {
  *stream = reinterpret_cast<C_Stream>(&freed);
  return C_SUCCESS;
}
C_Status create_event(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(&freed);
  return C_SUCCESS;
}
C_Status call_back(const C_Device device, C_Stream stream, C_Callback callback, void* user_data) {
  C_Status status = C_SUCCESS;
  callback(device, stream, user_data, &status);
  return status;
}

using Sizes = std::vector<int64_t>;

char* bytes_of(const phi::DenseTensor& tensor) {  // from its first element on
  C_Status status;
  return static_cast<char*>(PD_TensorGetDataPointer(tensor.raw_data(), &status));
}

Sizes strides_of(const phi::DenseTensor& tensor) {
  C_Status status;
  Sizes strides(PD_TensorGetNumStrides(tensor.raw_data(), &status));
  for (size_t i = 0; i < strides.size(); i++) strides[i] = PD_TensorGetStride(tensor.raw_data(), i, &status);
  return strides;
}

Sizes dense(const Sizes& dims) {
  Sizes strides(dims.size(), 1);
  for (int64_t i = int64_t(dims.size()) - 2; i >= 0; i--) strides[i] = strides[i + 1] * dims[i + 1];
  return strides;
}

template <typename T>
void copy_elements(const T* source, const Sizes& from, T* target, const Sizes& to, const Sizes& dims, size_t dim = 0) {
  if (dim == dims.size()) {
    *target = *source;
    return;
  }
  for (int64_t i = 0; i < dims[dim]; i++)
    copy_elements(source + i * from[dim], from, target + i * to[dim], to, dims, dim + 1);
}

template <typename T>
void copy_tensor(const phi::DenseTensor& input, void* target, const Sizes& to, const Sizes& dims) {
  if (!input.numel()) return;
  copy_elements(reinterpret_cast<T*>(bytes_of(input)), strides_of(input), static_cast<T*>(target), to, dims);
}

template <typename T>
void StridedCopy(const phi::Context&, const phi::DenseTensor& input, const Sizes& dims, const Sizes& strides, int64_t offset,
                 phi::DenseTensor* out) {
  out->Resize(dims);
  out->set_strides(strides);
  out->set_offset(offset);
  copy_tensor<T>(input, bytes_of(*out), strides, dims);
}

template <typename T>
void Assign(const phi::Context& context, const phi::DenseTensor& input, phi::DenseTensor* out) {
  auto target = context.Alloc<T>(out);
  copy_tensor<T>(input, target, dense(input.dims()), input.dims());
}

template <typename T>
void Contiguous(const phi::Context& context, const phi::DenseTensor& input, phi::DenseTensor* out) {
  out->Resize(input.dims());
  out->set_offset(0);
  out->set_strides(dense(input.dims()));
  Assign<T>(context, input, out);
}

template <typename T>
void Fill(const phi::Context& context, const phi::DenseTensor& input, const phi::Scalar& value, phi::DenseTensor* out) {
  std::fill_n(context.Alloc<T>(out), input.numel(), static_cast<T>(value.to<float>()));
}

}  // namespace sim

#define SIM_KERNEL(name, function)                                                                                           \
  PD_BUILD_PHI_KERNEL(name, sim, ALL_LAYOUT, sim::function, bool, uint8_t, int8_t, int16_t, int32_t, int64_t, float, double, \
                      phi::dtype::float16, phi::dtype::bfloat16) {}

SIM_KERNEL(strided_copy, StridedCopy)
SIM_KERNEL(contiguous, Contiguous)
SIM_KERNEL(assign, Assign)
SIM_KERNEL(fill, Fill)

extern "C" __attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>("sim");
  params->sub_device_type = const_cast<char*>("v1");

  C_DeviceInterface* device = params->interface;
  std::memset(reinterpret_cast<char*>(device) + sizeof(device->size), 0, sizeof(*device) - sizeof(device->size));
  device->initialize = device->finalize = sim::succeed;
  device->init_device = device->deinit_device = device->set_device = device->synchronize_device = sim::with_device;
  device->get_device = sim::current_device;
  device->get_device_count = sim::device_count;
  device->get_device_list = sim::device_list;
  device->device_memory_stats = sim::memory_stats;
  device->device_min_chunk_size = sim::least_chunk;
  device->device_extra_padding_size = sim::no_padding;

  device->device_memory_allocate = sim::allocate;
  device->device_memory_deallocate = sim::release;
  device->host_memory_allocate = device->unified_memory_allocate = sim::allocate_of_host;
  device->host_memory_deallocate = device->unified_memory_deallocate = sim::release_of_host;
  device->device_memory_set = sim::fill;
  device->memory_copy_h2d = device->memory_copy_d2h = device->memory_copy_d2d = sim::copy;
  device->async_memory_copy_h2d = device->async_memory_copy_d2h = device->async_memory_copy_d2d = sim::copy_in_stream;

  device->create_stream = sim::create_stream;
  device->destroy_stream = device->query_stream = device->synchronize_stream = sim::with_stream;
  device->stream_add_callback = sim::call_back;
  device->create_event = sim::create_event;
  device->destroy_event = device->query_event = device->synchronize_event = sim::with_event;
  device->record_event = device->stream_wait_event = sim::with_both;
}
