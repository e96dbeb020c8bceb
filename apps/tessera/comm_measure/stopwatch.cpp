#include "tessera/comm_measure/stopwatch.h"

#include <chrono>
#include <utility>

#include "comm/gloo/gloo_backend.h"

namespace tessera::comm {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

/// Adds its lifetime to a watch.
class Lap {
 public:
  explicit Lap(Stopwatch& watch) : watch_(watch), begin_(std::chrono::steady_clock::now()) {}
  ~Lap() { watch_.add(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count()); }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  Stopwatch& watch_;
  std::chrono::steady_clock::time_point begin_;
};

class TimedWork : public c10d::Work {
 public:
  TimedWork(WorkPtr work, std::shared_ptr<Stopwatch> watch) : work_(std::move(work)), watch_(std::move(watch)) {}
  ~TimedWork() override {
    const Lap lap(*watch_);  // a caller of bare Gloo has to release its work as well
    work_.reset();
  }

  bool isCompleted() override { return work_->isCompleted(); }
  bool isSuccess() const override { return work_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const Lap lap(*watch_);
    return work_->wait(timeout);
  }

 private:
  WorkPtr work_;
  std::shared_ptr<Stopwatch> watch_;
};

class TimedBackend : public c10d::Backend {
 public:
  TimedBackend(c10::intrusive_ptr<c10d::Backend> bare, std::shared_ptr<Stopwatch> watch)
      : Backend(bare->getRank(), bare->getSize()), bare_(std::move(bare)), watch_(std::move(watch)) {}

  const std::string getBackendName() const override { return bare_->getBackendName(); }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override {
    return timed([&] { return bare_->allreduce(tensors, opts); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override {
    return timed([&] { return bare_->_allgather_base(output, input, opts); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override {
    return timed([&] { return bare_->_reduce_scatter_base(output, input, opts); });
  }

 private:
  template <typename Start>
  WorkPtr timed(const Start& start) {
    const Lap lap(*watch_);
    return c10::make_intrusive<TimedWork>(start(), watch_);
  }

  c10::intrusive_ptr<c10d::Backend> bare_;
  std::shared_ptr<Stopwatch> watch_;
};

class TimedConnector : public Connector {
 public:
  TimedConnector(c10::intrusive_ptr<c10d::Backend> bare, std::shared_ptr<Stopwatch> watch)
      : bare_(std::move(bare)), watch_(std::move(watch)) {}

  Connection connect(const ConnectRequest& request) override {
    Connection connection;
    connection.transport = std::make_shared<GlooTransport>(bare_);
    connection.backend = c10::make_intrusive<GlooBackend>(c10::make_intrusive<TimedBackend>(bare_, watch_),
                                                          connection.transport, request.timeout);
    connection.is_zero_copy = [](const void*, std::size_t) { return false; };
    return connection;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> bare_;
  std::shared_ptr<Stopwatch> watch_;
};

}  // namespace

std::shared_ptr<Connector> timed_gloo(c10::intrusive_ptr<c10d::Backend> bare, std::shared_ptr<Stopwatch> watch) {
  return std::make_shared<TimedConnector>(std::move(bare), std::move(watch));
}

}  // namespace tessera::comm
