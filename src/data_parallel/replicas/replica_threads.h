#pragma once

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::data_parallel {

/// Sets the number of intra-op threads of the calling thread, even if the thread has not used LibTorch before.
/// It also becomes the default of new threads, so the caller that starts such a thread must set its own number again
/// afterwards.
void set_intra_op_threads(int number);

/// A thread for each replica, for as long as the object lives.
class ReplicaThreads {
 public:
  ReplicaThreads(std::vector<at::Device> devices, std::int64_t intra_op_threads);
  ~ReplicaThreads();
  ReplicaThreads(const ReplicaThreads&) = delete;
  ReplicaThreads& operator=(const ReplicaThreads&) = delete;

  const std::vector<at::Device>& devices() const { return devices_; }

  /// Runs `body(replica)` for the first `num_replicas`, each on its thread, with the caller's thread-local state of
  /// LibTorch (grad mode, autocast, ...). Blocks: until all are done. Throws Error naming the first replica that failed
  /// and `what` it did, with the replica's exception nested in it.
  /// Thread-safety: any thread; one call after another.
  void run(std::size_t num_replicas, const std::string& what, const std::function<void(std::size_t)>& body);

 private:
  struct Job;
  void serve(std::size_t replica, std::int64_t intra_op_threads);

  std::vector<at::Device> devices_;
  std::mutex running_;  // held by run()

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  Job* job_ = nullptr;
  std::uint64_t job_number_ = 0;
  std::size_t num_ready_ = 0;
  bool stopping_ = false;

  std::vector<std::thread> threads_;
};

}  // namespace tessera::data_parallel
