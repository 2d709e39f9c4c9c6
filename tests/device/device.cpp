// A device of PyTorch whose memory is memory of the host, and whose work is done late, by threads: one for each stream.
//
// What a stream is given is done in order, after a random delay now and then, and across streams only as ordered by
// events. An operation reads its operands and writes its results when its stream comes to it; copies take as long as a
// link of a given bandwidth would need, and so do operations, where memory is given one. Memory that is freed is poisoned
// in the order of its stream and handed out again to that stream at once, as by the caching allocator of CUDA devices: a
// copy that lacks an order sees it change. Where nothing says otherwise, sizes are in bytes and times in seconds. Nothing
// static is ever destroyed, since threads may still run.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "operations.h"

namespace {

// What PyTorch asks of a device.

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  static c10::Device device(int index) { return {KIND, c10::DeviceIndex(index)}; }
  static c10::Stream stream(int index, c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, device(index), id); }
  static Queue& of(const c10::Stream& stream) { return queue({stream.device_index(), stream.id()}); }
  static EventPointer& event(void* raw) { return *static_cast<EventPointer*>(raw); }

  c10::DeviceType type() const override { return KIND; }
  c10::DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  c10::Device getDevice() const override { return device(current_device); }
  void setDevice(c10::Device wanted) const override { current_device = std::max<int>(wanted.index(), 0); }
  void uncheckedSetDevice(c10::Device wanted) const noexcept override { setDevice(wanted); }
  c10::Device exchangeDevice(c10::Device wanted) const override {
    auto before = getDevice();
    setDevice(wanted);
    return before;
  }
  c10::Stream getStream(c10::Device of) const override {
    int index = of.has_index() ? of.index() : current_device;
    return stream(index, current_streams[index]);
  }
  c10::Stream getDefaultStream(c10::Device of) const override { return stream(std::max<int>(of.index(), 0), 0); }
  c10::Stream getNewStream(c10::Device of, int) const override {
    return stream(of.has_index() ? of.index() : current_device, next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream wanted) const override {
    auto& current = current_streams[wanted.device_index()];
    auto before = current;
    current = wanted.id();
    return stream(wanted.device_index(), before);
  }
  bool queryStream(const c10::Stream& stream) const override { return of(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override {
    ++host_waits;
    of(stream).drain();
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    ++host_waits;
    std::vector<Queue*> all;
    {
      std::lock_guard<std::mutex> held(queues_lock);
      for (auto& [place, one] : queues) if (place.first == index) all.push_back(one);
    }
    for (auto one : all) one->drain();
  }
  void record(void** raw, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*raw) *raw = new EventPointer(new Event);
    event(*raw) = std::make_shared<Event>();  // who waits for the last one waits for that
    auto point = event(*raw);
    point->set(false);
    auto& work = of(stream);
    work.put([&work, point, submitted = now()] {
      point->at = work.here(submitted);
      point->set(true);
    });
  }
  void block(void* raw, const c10::Stream& stream) const override {
    auto point = event(raw);
    if (point->query()) return;  // what is over orders nothing
    auto& work = of(stream);
    work.put_unknown([&work, point, place = Place(stream.device_index(), stream.id()), submitted = now()] {
      double begun = work.here(submitted);
      point->wait();
      work.clock = std::max(begun, point->at);
      if (has_computations) note({place.first, WAITED, place.second, 0, submitted, begun, work.here(begun)});
    });
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override { memory.use(data.get(), stream.id()); }
  bool queryEvent(void* raw) const override { return event(raw)->query(); }
  void synchronizeEvent(void* raw) const override {
    ++host_waits;
    is_touched[current_device] = true;
    EventPointer(event(raw))->wait();
  }
  void destroyEvent(void* raw, c10::DeviceIndex) const noexcept override { delete static_cast<EventPointer*>(raw); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return DEVICES; }
  bool isPinnedPtr(const void* data) const override { return pinned.has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    c10::DeviceGuard guard(storage.device());
    queue(current(current_device)).drain();
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace

REGISTER_ALLOCATOR(KIND, &device_allocator);
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);
static bool is_registered = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar);
  library.impl("record_stream", &record_stream);
  library.impl("as_strided", &as_strided);
  library.impl("view", &view);
  library.impl("view.dtype", &at::native::view_dtype);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("view_as_complex", &at::native::view_as_complex);
  library.impl("unfold", &at::native::unfold);
  library.impl("_reshape_alias", &reshape_alias);
  library.impl("set_.source_Storage_storage_offset", &set_source);
  library.impl("resize_", &resize);
  library.impl("convolution_overrideable", &convolution);
  library.impl("convolution_backward_overrideable", &convolution_backward);
  library.impl("_thnn_fused_lstm_cell", &lstm_cell);
  library.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
}

// Copies resolve lazy flags themselves: to resolve one first takes a copy.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, library) { library.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  m.impl("linear", &linear);
  m.impl("matmul", &matmul);
  m.impl("softmax.int", &softmax);
}

// What tests set and read.

extern "C" {
int64_t live_bytes(int device) { std::lock_guard<std::mutex> held(memory.lock); return memory.live[device]; }
int64_t peak_bytes(int device) { std::lock_guard<std::mutex> held(memory.lock); return memory.peak[device]; }
void reset_peak(int device) { std::lock_guard<std::mutex> held(memory.lock); memory.peak[device] = memory.live[device]; }
void set_limit(int device, int64_t nbytes) { std::lock_guard<std::mutex> held(memory.lock); memory.limit[device] = nbytes; }
bool has_context(int device) { return is_touched[device]; }
int64_t waits() { return host_waits; }
int64_t pinned_bytes() { std::lock_guard<std::mutex> held(pinned.lock); return pinned.live; }
void set_link(int device, int direction, double bandwidth, double latency) {
  links[device][direction].bandwidth = bandwidth;
  links[device][direction].latency = latency;
}
void set_delays(double longest, unsigned chance) {
  longest_delay = longest;
  seed = chance;
  std::lock_guard<std::mutex> held(queues_lock);
  unsigned number = 0;
  for (auto& [place, one] : queues) {
    std::lock_guard<std::mutex> also(one->lock);
    one->chance.seed(chance + 1000 * ++number);
  }
}
void set_memory(double bandwidth) { memory_bandwidth = bandwidth; }
void set_computations(bool logged) { has_computations = logged; }
int64_t count_records() { std::lock_guard<std::mutex> held(records_lock); return int64_t(records.size()); }
void take_records(Record* target, int64_t count) {
  std::lock_guard<std::mutex> held(records_lock);
  std::copy(records.begin(), records.begin() + count, target);
  records.erase(records.begin(), records.begin() + count);
}
}
