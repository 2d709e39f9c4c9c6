// A custom device of Paddle for tests, named "sim": host memory that is overwritten when it is freed.
//
// Every operator runs on the host, when the stream that Paddle computes in has come to it, and its result is copied to the
// device. Streams are threads: what they are given is done in order, after a random delay now and then, and across streams
// only as ordered by events. With SIM_KERNELS the device has kernels of its own for what is not contiguous.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "paddle/phi/backends/device_ext.h"

namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kTotalBytes = size_t{8} << 30;
constexpr unsigned char kFreed = 0xAB;

std::atomic<size_t> live_bytes{0}, peak_bytes{0};
std::atomic<double> longest_delay_s{0};

class Queue {
 public:
  Queue() { std::thread([this] { work(); }).detach(); }

  void put(std::function<void()> work) {
    { std::lock_guard<std::mutex> held(lock_); waiting_.push_back(std::move(work)); }
    changed_.notify_all();
  }
  bool idle() { std::lock_guard<std::mutex> held(lock_); return waiting_.empty() && !busy_; }
  void drain() { std::unique_lock<std::mutex> held(lock_); changed_.wait(held, [this] { return waiting_.empty() && !busy_; }); }

 private:
  void work() {
    std::mt19937 chance;
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> held(lock_);
        changed_.wait(held, [this] { return !waiting_.empty(); });
        next = std::move(waiting_.front());
        waiting_.pop_front();
        busy_ = true;
      }
      double longest = longest_delay_s;
      if (longest > 0 && chance() % 3 == 0)
        std::this_thread::sleep_for(std::chrono::duration<double>(std::uniform_real_distribution<double>(0, longest)(chance)));
      next();
      next = nullptr;
      { std::lock_guard<std::mutex> held(lock_); busy_ = false; }
      changed_.notify_all();
    }
  }

  std::mutex lock_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;
  bool busy_ = false;
};

// Nothing static is ever destroyed, since threads may still run.
auto& queues = *new std::set<Queue*>;
auto& queues_lock = *new std::mutex;

Queue* queue_of(C_Stream stream) {
  static Queue* unnamed = new Queue;
  return stream ? reinterpret_cast<Queue*>(stream) : unnamed;
}

void drain() {
  std::vector<Queue*> found;
  {
    std::lock_guard<std::mutex> held(queues_lock);
    found.assign(queues.begin(), queues.end());
  }
  for (Queue* queue : found) queue->drain();
}

struct Event {
  std::mutex lock;
  std::condition_variable changed;
  bool done = true;

  void set(bool value) {
    { std::lock_guard<std::mutex> held(lock); done = value; }
    changed.notify_all();
  }
  void wait() { std::unique_lock<std::mutex> held(lock); changed.wait(held, [this] { return done; }); }
  bool query() { std::lock_guard<std::mutex> held(lock); return done; }
};
using EventPointer = std::shared_ptr<Event>;

EventPointer& event_of(C_Event event) { return *reinterpret_cast<EventPointer*>(event); }

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

auto& freed = *new std::map<size_t, std::vector<void*>>;  // handed out again, but to this device alone
auto& freed_lock = *new std::mutex;

C_Status allocate(const C_Device, void** memory, size_t nbytes) {
  {
    std::lock_guard<std::mutex> held(freed_lock);
    auto& same = freed[nbytes];
    *memory = same.empty() ? nullptr : same.back();
    if (*memory) same.pop_back();
  }
  if (!*memory && posix_memalign(memory, kAlignment, nbytes) != 0) return C_FAILED;
  size_t live = live_bytes += nbytes, peak = peak_bytes;
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live)) {}
  return C_SUCCESS;
}
C_Status allocate_of_host(const C_Device, void** memory, size_t nbytes) {
  return posix_memalign(memory, kAlignment, nbytes) == 0 ? C_SUCCESS : C_FAILED;
}
C_Status release_of_host(const C_Device, void* memory, size_t) {
  std::free(memory);
  return C_SUCCESS;
}
C_Status release(const C_Device, void* memory, size_t nbytes) {
  drain();
  std::memset(memory, kFreed, nbytes);
  {
    std::lock_guard<std::mutex> held(freed_lock);
    freed[nbytes].push_back(memory);
  }
  live_bytes -= nbytes;
  return C_SUCCESS;
}
C_Status fill(const C_Device, void* memory, unsigned char value, size_t nbytes) {
  drain();
  std::memset(memory, value, nbytes);
  return C_SUCCESS;
}
C_Status copy(const C_Device, void* target, const void* source, size_t nbytes) {
  drain();
  std::memcpy(target, source, nbytes);
  return C_SUCCESS;
}
C_Status copy_out_in_stream(const C_Device, C_Stream stream, void* target, const void* source, size_t nbytes) {
  queue_of(stream)->drain();  // as where memory of the host is not page-locked
  std::memcpy(target, source, nbytes);
  return C_SUCCESS;
}
C_Status copy_in_stream(const C_Device, C_Stream stream, void* target, const void* source, size_t nbytes) {
  auto staged = std::make_shared<std::vector<char>>(static_cast<const char*>(source), static_cast<const char*>(source) + nbytes);
  queue_of(stream)->put([=] { std::memcpy(target, staged->data(), nbytes); });
  return C_SUCCESS;
}
C_Status copy_within_in_stream(const C_Device, C_Stream stream, void* target, const void* source, size_t nbytes) {
  queue_of(stream)->put([=] { std::memcpy(target, source, nbytes); });
  return C_SUCCESS;
}

C_Status create_stream(const C_Device, C_Stream* stream) {
  auto queue = new Queue;
  std::lock_guard<std::mutex> held(queues_lock);
  queues.insert(queue);
  *stream = reinterpret_cast<C_Stream>(queue);
  return C_SUCCESS;
}
C_Status destroy_stream(const C_Device, C_Stream stream) {
  queue_of(stream)->drain();
  std::lock_guard<std::mutex> held(queues_lock);
  queues.erase(queue_of(stream));  // its thread waits for ever
  return C_SUCCESS;
}
C_Status query_stream(const C_Device, C_Stream stream) { return queue_of(stream)->idle() ? C_SUCCESS : C_FAILED; }
C_Status await_stream(const C_Device, C_Stream stream) {
  queue_of(stream)->drain();
  return C_SUCCESS;
}
C_Status await_device(const C_Device) {
  drain();
  return C_SUCCESS;
}
C_Status call_back(const C_Device device, C_Stream stream, C_Callback callback, void* user_data) {
  queue_of(stream)->put([=] {
    C_Status status = C_SUCCESS;
    callback(device, stream, user_data, &status);
  });
  return C_SUCCESS;
}
C_Status create_event(const C_Device, C_Event* event) {
  *event = reinterpret_cast<C_Event>(new EventPointer(new Event));
  return C_SUCCESS;
}
C_Status destroy_event(const C_Device, C_Event event) {
  delete &event_of(event);
  return C_SUCCESS;
}
C_Status query_event(const C_Device, C_Event event) { return event_of(event)->query() ? C_SUCCESS : C_FAILED; }
C_Status await_event(const C_Device, C_Event event) {
  EventPointer(event_of(event))->wait();
  return C_SUCCESS;
}
C_Status record_event(const C_Device, C_Stream stream, C_Event event) {
  auto point = event_of(event) = std::make_shared<Event>();  // who waits for the last one waits for that
  point->set(false);
  queue_of(stream)->put([point] { point->set(true); });
  return C_SUCCESS;
}
C_Status stream_wait_event(const C_Device, C_Stream stream, C_Event event) {
  queue_of(stream)->put([point = event_of(event)] { point->wait(); });
  return C_SUCCESS;
}

}  // namespace

// What tests set and read.
extern "C" {
__attribute__((visibility("default"))) void set_delays(double longest_s) { longest_delay_s = longest_s; }
__attribute__((visibility("default"))) int64_t live() { return int64_t(live_bytes); }
__attribute__((visibility("default"))) int64_t peak() { return int64_t(peak_bytes); }
__attribute__((visibility("default"))) void reset_peak() { peak_bytes = live_bytes.load(); }
}

#ifdef SIM_KERNELS
namespace sim {
void drain_compute() { drain(); }
}  // namespace sim
#include "sim_kernels.h"
#endif

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
  device->synchronize_device = await_device;
  device->get_device_count = device_count;
  device->get_device_list = device_list;
  device->device_memory_stats = memory_stats;
  device->device_min_chunk_size = least_chunk;
  device->device_extra_padding_size = no_padding;

  device->device_memory_allocate = allocate;
  device->device_memory_deallocate = release;
  device->host_memory_allocate = allocate_of_host;
  device->host_memory_deallocate = release_of_host;
  device->unified_memory_allocate = allocate_of_host;
  device->unified_memory_deallocate = release_of_host;
  device->device_memory_set = fill;
  device->memory_copy_h2d = copy;
  device->memory_copy_d2h = copy;
  device->memory_copy_d2d = copy;
  device->async_memory_copy_h2d = copy_in_stream;
  device->async_memory_copy_d2h = copy_out_in_stream;
  device->async_memory_copy_d2d = copy_within_in_stream;

  device->create_stream = create_stream;
  device->destroy_stream = destroy_stream;
  device->query_stream = query_stream;
  device->synchronize_stream = await_stream;
  device->stream_add_callback = call_back;
  device->create_event = create_event;
  device->destroy_event = destroy_event;
  device->query_event = query_event;
  device->synchronize_event = await_event;
  device->record_event = record_event;
  device->stream_wait_event = stream_wait_event;
}
