// Memory of the devices, and page-locked memory of the host.
#pragma once
#include "streams.h"

#include <set>
#include <tuple>

namespace {

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

}  // namespace
