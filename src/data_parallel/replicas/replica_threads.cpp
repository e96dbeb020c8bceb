#include "data_parallel/replicas/replica_threads.h"

#include <tessera/comm/settle_math.h>
#include <tessera/core/error.h>
#include <tessera/shard/stream_order.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include <exception>
#include <utility>

namespace tessera::data_parallel {
namespace {

// Note [Replica 0 on other devices than the CPU]
// LibTorch runs the backward of a CUDA graph on one thread for each device. Our node blocks the thread of device 0. If
// another thread started replica 0's backward, that backward would wait for the blocked thread for ever. Started from
// the blocked thread itself, it is a backward within a backward, which LibTorch runs in place. On the CPU, backward
// runs on the thread that starts it; there replica 0 has its own thread, to keep its number of intra-op threads apart
// from the caller's.
std::size_t first_on_a_thread(const std::vector<at::Device>& devices) { return devices.front().is_cpu() ? 0 : 1; }

}  // namespace

void set_intra_op_threads(int number) {
  // LibTorch sets the number at a thread's first use, which must happen before our call. LibTorch's libraries and this
  // program each keep their own flag for that, so both are initialised here.
  at::get_num_threads();
  at::internal::lazy_init_num_threads();
  at::set_num_threads(number);
}

struct ReplicaThreads::Job {
  std::size_t num_replicas;
  const std::string& what;
  const std::function<void(std::size_t)>& body;
  const std::vector<at::Device>& devices;
  at::ThreadLocalState state{};
  /// The caller's current streams: what the replicas launch comes behind what it has launched, and it behind that.
  std::vector<c10::Stream> streams = current_streams(devices);
  std::size_t num_pending = 0;
  std::vector<std::exception_ptr> failures = std::vector<std::exception_ptr>(num_replicas);

  void run(std::size_t replica) {
    try {
      const at::ThreadLocalStateGuard guard(state);
      const c10::OptionalDeviceGuard device(devices[replica]);
      const c10::MultiStreamGuard on_streams(streams);
      body(replica);
    } catch (const std::exception& error) {
      failures[replica] = named(replica, error.what());
    } catch (...) {
      failures[replica] = named(replica, "an exception of an unknown kind");
    }
  }

  // Called inside the catch block, so that the exception is nested.
  std::exception_ptr named(std::size_t replica, const std::string& message) const {
    try {
      std::throw_with_nested(Error("replica " + std::to_string(replica) + " of " + std::to_string(devices.size()) +
                                   " (" + devices[replica].str() + ") failed in its " + what + ": " + message));
    } catch (...) {
      return std::current_exception();
    }
  }
};

ReplicaThreads::ReplicaThreads(std::vector<at::Device> devices, std::int64_t intra_op_threads)
    : devices_(std::move(devices)) {
  settle_math();
  const int callers = at::get_num_threads();
  for (std::size_t i = first_on_a_thread(devices_); i < devices_.size(); ++i) {
    threads_.emplace_back([this, i, intra_op_threads] { serve(i, intra_op_threads); });
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return num_ready_ == threads_.size(); });
  lock.unlock();
  at::set_num_threads(callers);
}

ReplicaThreads::~ReplicaThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ReplicaThreads::serve(std::size_t replica, std::int64_t intra_op_threads) {
  if (devices_[replica].is_cpu()) set_intra_op_threads(static_cast<int>(intra_op_threads));
  std::unique_lock lock(mutex_);
  ++num_ready_;
  changed_.notify_all();
  for (std::uint64_t num_seen = 0;;) {
    changed_.wait(lock, [&] { return stopping_ || job_number_ != num_seen; });
    if (stopping_) return;
    num_seen = job_number_;
    Job* const job = job_;
    if (job == nullptr || replica >= job->num_replicas) continue;
    lock.unlock();
    job->run(replica);
    lock.lock();
    if (--job->num_pending == 0) changed_.notify_all();
  }
}

void ReplicaThreads::run(std::size_t num_replicas, const std::string& what,
                         const std::function<void(std::size_t)>& body) {
  const std::lock_guard one_at_a_time(running_);
  const std::size_t first = first_on_a_thread(devices_);
  Job job{num_replicas, what, body, devices_};
  job.num_pending = num_replicas - first;
  {
    const std::lock_guard lock(mutex_);
    job_ = &job;
    ++job_number_;
  }
  changed_.notify_all();
  for (std::size_t i = 0; i < first; ++i) job.run(i);
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.num_pending == 0; });
    job_ = nullptr;
  }
  for (const auto& failure : job.failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace tessera::data_parallel
