// Time and links, streams and events, and what a thread submits to a stream.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <array>
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
#include <optional>
#include <random>
#include <shared_mutex>
#include <thread>
#include <vector>

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

}  // namespace
