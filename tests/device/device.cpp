// A device of PyTorch whose memory is memory of the host, and whose work is done late, by threads: one for each stream.
//
// What a stream is given is done in order, after a random delay now and then, and across streams only as ordered by events. An
// operation reads its operands and writes its results when its stream comes to it; copies take as long as a link of a given
// bandwidth would need, and so do operations, where memory is given one. Memory that is freed is poisoned in the order of its stream and handed out again to that stream
// at once, as by the caching allocator of CUDA devices: a copy that lacks an order sees it change. Where nothing says
// otherwise, sizes are in bytes and times in seconds. Nothing static is ever destroyed, since threads may still run.
#include <ATen/EmptyTensor.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
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
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <shared_mutex>
#include <thread>
#include <vector>

// Of ATen/autocast_mode.h, which includes every operator and takes longer to compile than all of this.
namespace at::autocast {
TORCH_API ScalarType get_autocast_dtype(DeviceType);
TORCH_API Tensor cached_cast(ScalarType, const Tensor&, DeviceType);
}

namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr int DEVICES = 2;
constexpr int POISON = 0xFF;  // not a number, in every floating format
constexpr size_t ALIGNMENT = 64;

double now() { return Seconds(Clock::now().time_since_epoch()).count(); }
void sleep_until(double when) { std::this_thread::sleep_until(Clock::time_point(std::chrono::duration_cast<Clock::duration>(Seconds(when)))); }

// A forked child has no device: it is refused whatever it asks for, and what it frees is its parent's.
const pid_t owner = getpid();
bool is_child() { return getpid() != owner; }

// What the program sets.

std::atomic<double> longest_delay{0};
std::atomic<double> memory_bandwidth{0};  // operations take as long as reading and writing do; 0: as long as the host needs
std::atomic<unsigned> seed{0};

struct Link {  // from or to one device; one copy after the other
  std::atomic<double> bandwidth{0}, latency{0};
  std::mutex lock;
  double free_at = 0;

  std::pair<double, double> cross(size_t nbytes, double from, const std::function<void()>& begin) {  // return when it began and ended
    double begun, ended;
    {
      std::lock_guard<std::mutex> held(lock);
      begun = std::max(from, free_at);
      ended = free_at = begun + (bandwidth > 0 ? double(nbytes) / bandwidth : 0.0);
    }
    sleep_until(begun);
    begin();
    sleep_until(ended + latency);
    return {begun, ended + latency};
  }
};
enum Direction { TO_HOST, TO_DEVICE, COMPUTED, WAITED };
auto& links = *new std::array<std::array<Link, 2>, DEVICES>;

struct Record { int32_t device; int32_t direction; int64_t stream; int64_t nbytes; double submitted, begun, ended; };
auto& records = *new std::vector<Record>;
auto& records_lock = *new std::mutex;
std::atomic<bool> has_computations{false};  // whether the log has them, too

void note(const Record& record) {
  std::lock_guard<std::mutex> held(records_lock);
  records.push_back(record);
}

// Streams and events.

struct Event {
  std::mutex lock;
  std::condition_variable changed;
  bool done = true;
  double at = 0;  // when it was come to

  void set(bool value) {
    { std::lock_guard<std::mutex> held(lock); done = value; }
    changed.notify_all();
  }
  void wait() { std::unique_lock<std::mutex> held(lock); changed.wait(held, [&] { return done; }); }
  bool query() { std::lock_guard<std::mutex> held(lock); return done; }
};
using EventPointer = std::shared_ptr<Event>;

struct Writing {  // by work that the stream has not come to
  const char *begin, *end;
  bool is_known;      // what will be written
  at::Tensor result;  // of dense memory; if there is none it is poison
};

// At exit what has begun comes to its end, since PyTorch itself goes away next, and nothing else begins.
std::atomic<bool> is_exiting{false};
auto& at_work = *new std::shared_timed_mutex;  // held by whoever is at work; alone at exit

void stop_all() {
  is_exiting = true;
  at_work.try_lock_for(Seconds(5));  // in vain where work waits for what does not begin any more
}

void run_unless_exiting(const std::function<void()>& work) {
  {
    std::shared_lock<std::shared_timed_mutex> held(at_work);
    if (!is_exiting) return work();
  }
  for (;;) std::this_thread::sleep_for(Seconds(3600));
}

// What an operation reads is known before its stream has come to it, unless copies or other streams have a part in it.
struct Queue {
  std::mutex lock;
  std::condition_variable changed;
  std::deque<std::function<void()>> waiting;
  std::deque<Writing> writings;
  int unknown = 0;  // pieces of work after which nothing is known
  bool busy = false;
  std::mt19937 chance;
  double clock = 0;  // until when it is busy, where the times of operations are known; its thread's own

  // Return when it comes to what was submitted then: now, or when it would if its thread never woke late.
  double here(double submitted) const { return memory_bandwidth > 0 ? std::max(clock, submitted) : now(); }

  explicit Queue(unsigned number) : chance(seed + 1000 * number) {
    static const int registered = std::atexit(stop_all);  // after PyTorch's own, and so before them
    (void)registered;
    std::thread([this] { work(); }).detach();
  }

  void work() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return !waiting.empty(); });
        next = std::move(waiting.front());
        waiting.pop_front();
        busy = true;
      }
      double most = longest_delay;
      if (most > 0 && chance() % 4 == 0)
        std::this_thread::sleep_for(Seconds(std::uniform_real_distribution<double>(0, most)(chance)));
      run_unless_exiting(next);
      next = nullptr;
      { std::lock_guard<std::mutex> held(lock); busy = false; }
      changed.notify_all();
    }
  }
  void put(std::function<void()> work) {
    { std::lock_guard<std::mutex> held(lock); waiting.push_back(std::move(work)); }
    changed.notify_all();
  }
  void put_writing(Writing writing, std::function<void()> work) {
    {
      std::lock_guard<std::mutex> held(lock);
      writings.push_back(std::move(writing));
      waiting.push_back([this, work = std::move(work)] {
        work();
        std::lock_guard<std::mutex> ended(lock);
        writings.pop_front();
      });
    }
    changed.notify_all();
  }
  void put_unknown(std::function<void()> work) {
    {
      std::lock_guard<std::mutex> held(lock);
      unknown++;
      waiting.push_back([this, work = std::move(work)] {
        work();
        std::lock_guard<std::mutex> ended(lock);
        unknown--;
      });
    }
    changed.notify_all();
  }
  // Return what memory will be when the stream comes to what is submitted next; nothing if only time will tell.
  std::optional<at::Tensor> foreseen(const at::Tensor& memory) {
    auto begin = static_cast<const char*>(memory.const_data_ptr());
    size_t last = 0;
    for (int64_t i = 0; i < memory.dim(); i++) last += (memory.size(i) - 1) * memory.stride(i);
    auto end = begin + (last + 1) * memory.itemsize();
    std::lock_guard<std::mutex> held(lock);
    if (unknown) return std::nullopt;
    auto bytes = at::empty({end - begin}, at::kByte);
    auto target = static_cast<char*>(bytes.mutable_data_ptr());
    memcpy(target, begin, end - begin);
    for (auto& writing : writings) {
      auto from = std::max(begin, writing.begin), to = std::min(end, writing.end);
      if (from >= to) continue;
      if (!writing.is_known) return std::nullopt;
      if (!writing.result.defined()) memset(target + (from - begin), POISON, to - from);
      else memcpy(target + (from - begin), static_cast<const char*>(writing.result.const_data_ptr()) + (from - writing.begin), to - from);
    }
    return bytes.view(memory.scalar_type()).as_strided(memory.sizes(), memory.strides(), 0);
  }
  void drain() { std::unique_lock<std::mutex> held(lock); changed.wait(held, [&] { return waiting.empty() && !busy; }); }
  bool idle() { std::lock_guard<std::mutex> held(lock); return waiting.empty() && !busy; }
};

using Place = std::pair<int, c10::StreamId>;  // a stream of a device; 0 is the default one
auto& queues = *new std::map<Place, Queue*>;
auto& queues_lock = *new std::mutex;
std::atomic<c10::StreamId> next_stream{1};
std::atomic<int64_t> host_waits{0};  // of threads of the program for a device

// A device that a thread has as its own when it calls the system gets a context there, as does one with a stream.
std::array<std::atomic<bool>, DEVICES> is_touched{};

Queue& queue(Place place) {
  TORCH_CHECK(!is_child(), "a forked child cannot use the simulated device");
  std::lock_guard<std::mutex> held(queues_lock);
  auto& found = queues[place];
  if (!found) found = new Queue(unsigned(queues.size()));
  is_touched[place.first] = true;
  return *found;
}

thread_local int current_device = 0;
thread_local std::array<c10::StreamId, DEVICES> current_streams{};

// An operation is computed where it is submitted, from what its operands will be. When the stream comes to it, it would read
// what is there then: if that is anything else, because somebody lacks an order, its results are poison.
struct Operation { std::atomic<bool> is_spoiled{false}; };
thread_local std::shared_ptr<Operation> operation;  // that this thread submits

Place current(int device) { return {device, current_streams[device]}; }

// It takes the time of computing it, without that of waiting to know what its operands will be, and the time of its stream.
// Where memory has a bandwidth, it takes what that needs for its operands and results.
struct Timed {  // a piece of computation
  Place place;
  double submitted, begun = now();
  ~Timed() { if (has_computations && !(memory_bandwidth > 0)) note({place.first, COMPUTED, place.second, 0, submitted, begun, now()}); }
};

struct Submission;
thread_local Submission* submission = nullptr;
struct Submission {  // of an operation, by this thread
  std::shared_ptr<Operation> before = std::exchange(operation, std::make_shared<Operation>());
  Submission* outer = std::exchange(submission, this);
  Place place = current(current_device);
  double submitted = now(), begun = submitted;
  size_t nbytes = 0;  // that it reads and writes

  void pause() {
    if (has_computations && !outer && !(memory_bandwidth > 0)) note({place.first, COMPUTED, place.second, 0, submitted, begun, now()});
  }
  void wait(Queue& work) {  // until it is known what an operand will be
    pause();
    work.drain();
    begun = now();
  }
  ~Submission() {
    pause();
    if (memory_bandwidth > 0) {
      auto& work = queue(place);
      work.put([&work, place = place, submitted = submitted, begun = begun, computed = now(), seconds = double(nbytes) / memory_bandwidth] {
        double from = work.here(begun);
        work.clock = std::max(from + seconds, computed);
        sleep_until(work.clock);
        if (has_computations) note({place.first, COMPUTED, place.second, 0, submitted, from, work.clock});
      });
    }
    operation = before;
    submission = outer;
  }
};

// Memory of the devices.

struct Block { size_t nbytes; int device; c10::StreamId stream; std::set<c10::StreamId> users; };

struct Memory {
  std::mutex lock;
  std::map<void*, Block> blocks;                                          // in use
  std::map<std::tuple<int, c10::StreamId, size_t>, std::vector<void*>> freed;  // to be handed out again
  std::array<int64_t, DEVICES> live{}, peak{}, limit{};

  void* take(size_t nbytes, int device) {
    std::lock_guard<std::mutex> held(lock);
    int64_t after = live[device] + int64_t(nbytes);
    TORCH_CHECK_WITH(OutOfMemoryError, !limit[device] || after <= limit[device], "simulated device ", device,
                     " is out of memory: ", nbytes, " bytes asked for, ", live[device], " of ", limit[device], " in use");
    live[device] = after;
    peak[device] = std::max(peak[device], after);
    c10::StreamId stream = current_streams[device];
    auto& kept = freed[{device, stream, nbytes}];
    void* memory = nullptr;
    if (!kept.empty()) {
      memory = kept.back();
      kept.pop_back();
    } else {
      TORCH_CHECK(!posix_memalign(&memory, ALIGNMENT, std::max(nbytes, ALIGNMENT)), "the host is out of memory");
      memset(memory, POISON, nbytes);
    }
    blocks[memory] = {nbytes, device, stream, {}};
    return memory;
  }

  void give(void* memory) {
    if (is_child()) return;
    std::lock_guard<std::mutex> held(lock);
    auto found = blocks.find(memory);
    Block block = found->second;
    blocks.erase(found);
    block.users.erase(block.stream);
    if (block.users.empty()) return settle(memory, block);
    auto left = std::make_shared<std::atomic<int>>(int(block.users.size()));
    for (auto user : block.users)
      queue({block.device, user}).put([this, memory, block, left] {
        if (--*left) return;
        std::lock_guard<std::mutex> later(lock);
        settle(memory, block);
      });
  }

  void settle(void* memory, const Block& block) {
    size_t nbytes = block.nbytes;
    auto begin = static_cast<const char*>(memory);
    queue({block.device, block.stream}).put_writing({begin, begin + nbytes, true, {}}, [memory, nbytes] { memset(memory, POISON, nbytes); });
    freed[{block.device, block.stream, nbytes}].push_back(memory);
    live[block.device] -= int64_t(nbytes);
  }

  void use(void* memory, c10::StreamId stream) {
    std::lock_guard<std::mutex> held(lock);
    auto found = blocks.find(memory);
    if (found != blocks.end()) found->second.users.insert(stream);
  }
};
auto& memory = *new Memory;

struct DeviceAllocator final : c10::Allocator {
  static void give(void* data) { if (data) memory.give(data); }
  c10::DataPtr allocate(size_t nbytes) override {
    auto device = c10::Device(KIND, c10::DeviceIndex(current_device));
    void* data = nbytes ? memory.take(nbytes, current_device) : nullptr;
    return {data, data, &give, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* target, const void* source, size_t nbytes) const override { memcpy(target, source, nbytes); }
};
auto& device_allocator = *new DeviceAllocator;

// Page-locked memory of the host. Copies under way do not keep it: who frees it too early finds it poisoned.

struct PinnedAllocator final : c10::Allocator {
  std::mutex lock;
  std::map<const char*, size_t> ranges;
  int64_t live = 0;

  static void give(void* data);
  c10::DataPtr allocate(size_t nbytes) override {
    void* data = nullptr;
    is_touched[current_device] = true;
    TORCH_CHECK(!posix_memalign(&data, 4096, std::max<size_t>(nbytes, 1)), "the host is out of memory");
    std::lock_guard<std::mutex> held(lock);
    ranges[static_cast<const char*>(data)] = nbytes;
    live += int64_t(nbytes);
    return {data, data, &give, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give; }
  void copy_data(void* target, const void* source, size_t nbytes) const override { memcpy(target, source, nbytes); }
  bool has(const void* data) {
    std::lock_guard<std::mutex> held(lock);
    auto after = ranges.upper_bound(static_cast<const char*>(data));
    return after != ranges.begin() && (--after)->first + after->second > static_cast<const char*>(data);
  }
};
auto& pinned = *new PinnedAllocator;

void PinnedAllocator::give(void* data) {
  if (is_child()) return;
  std::lock_guard<std::mutex> held(pinned.lock);
  auto found = pinned.ranges.find(static_cast<const char*>(data));
  memset(data, POISON, found->second);
  pinned.live -= int64_t(found->second);
  pinned.ranges.erase(found);
  free(data);
}

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

// Operations: those of the CPU. Their results are written when the stream comes to it.

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
