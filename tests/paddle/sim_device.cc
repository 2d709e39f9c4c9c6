// A custom device of Paddle for tests, named "sim": host memory that is overwritten when it is freed.
//
// It has no kernels, so that every operator runs on the host and its result is copied to the device. All work is done
// when it is submitted; streams and events are empty.

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "paddle/phi/backends/device_ext.h"

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kTotalBytes = size_t{8} << 30;
constexpr unsigned char kFreed = 0xAB;

std::atomic<size_t> live_bytes{0};

C_Status succeed() { return C_SUCCESS; }
C_Status with_device(const C_Device) { return C_SUCCESS; }
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
  *total = kTotalBytes;
  *free = kTotalBytes - live_bytes;
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

C_Status allocate(const C_Device, void** memory, size_t nbytes) {
  if (posix_memalign(memory, kAlignment, nbytes) != 0) return C_FAILED;
  live_bytes += nbytes;
  return C_SUCCESS;
}
C_Status release(const C_Device, void* memory, size_t nbytes) {
  std::memset(memory, kFreed, nbytes);
  std::free(memory);
  live_bytes -= nbytes;
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
C_Status copy_in_stream(const C_Device, C_Stream, void* target, const void* source, size_t nbytes) {
  std::memcpy(target, source, nbytes);
  return C_SUCCESS;
}

C_Status create_stream(const C_Device, C_Stream* stream) {
  *stream = reinterpret_cast<C_Stream>(new char);
  return C_SUCCESS;
}
C_Status destroy_stream(const C_Device, C_Stream stream) {
  delete reinterpret_cast<char*>(stream);
  return C_SUCCESS;
}
C_Status with_stream(const C_Device, C_Stream) { return C_SUCCESS; }
C_Status call_back(const C_Device device, C_Stream stream, C_Callback callback, void* user_data) {
  C_Status status = C_SUCCESS;
  callback(device, stream, user_data, &status);
  return status;
}
C_Status create_event(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(new char);
  return C_SUCCESS;
}
C_Status destroy_event(const C_Device, C_Event event) {
  delete reinterpret_cast<char*>(event);
  return C_SUCCESS;
}
C_Status with_event(const C_Device, C_Event) { return C_SUCCESS; }
C_Status with_stream_and_event(const C_Device, C_Stream, C_Event) { return C_SUCCESS; }

}  // namespace

extern "C" __attribute__((visibility("default"))) void InitPlugin(CustomRuntimeParams* params) {
  PADDLE_CUSTOM_RUNTIME_CHECK_VERSION(params);
  params->device_type = const_cast<char*>("sim");
  params->sub_device_type = const_cast<char*>("v1");

  C_DeviceInterface* device = params->interface;
  std::memset(reinterpret_cast<char*>(device) + sizeof(device->size), 0, sizeof(*device) - sizeof(device->size));
  device->initialize = succeed;
  device->finalize = succeed;
  device->init_device = with_device;
  device->deinit_device = with_device;
  device->set_device = with_device;
  device->get_device = current_device;
  device->synchronize_device = with_device;
  device->get_device_count = device_count;
  device->get_device_list = device_list;
  device->device_memory_stats = memory_stats;
  device->device_min_chunk_size = least_chunk;
  device->device_extra_padding_size = no_padding;

  device->device_memory_allocate = allocate;
  device->device_memory_deallocate = release;
  device->host_memory_allocate = allocate;
  device->host_memory_deallocate = release;
  device->unified_memory_allocate = allocate;
  device->unified_memory_deallocate = release;
  device->device_memory_set = fill;
  device->memory_copy_h2d = copy;
  device->memory_copy_d2h = copy;
  device->memory_copy_d2d = copy;
  device->async_memory_copy_h2d = copy_in_stream;
  device->async_memory_copy_d2h = copy_in_stream;
  device->async_memory_copy_d2d = copy_in_stream;

  device->create_stream = create_stream;
  device->destroy_stream = destroy_stream;
  device->query_stream = with_stream;
  device->synchronize_stream = with_stream;
  device->stream_add_callback = call_back;
  device->create_event = create_event;
  device->destroy_event = destroy_event;
  device->query_event = with_event;
  device->synchronize_event = with_event;
  device->record_event = with_stream_and_event;
  device->stream_wait_event = with_stream_and_event;
}
