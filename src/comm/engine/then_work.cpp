#include "comm/engine/then_work.h"

#include <ATen/core/ivalue.h>

#include <mutex>
#include <utility>

namespace tessera::comm {
namespace {

class ThenWork : public c10d::Work {
 public:
  ThenWork(c10::intrusive_ptr<c10d::Work> first, std::function<void()> finish)
      : first_(std::move(first)), finish_(std::move(finish)) {}

  bool isCompleted() override { return first_->isCompleted(); }
  bool isSuccess() const override { return first_->isSuccess(); }
  std::exception_ptr exception() const override { return first_->exception(); }
  std::vector<at::Tensor> result() override { return first_->result(); }

  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = first_->wait(timeout);
    finish_once();
    return done;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto self = c10::intrusive_ptr<ThenWork>::reclaim_copy(this);
    return first_->getFuture()->then(
        [self](c10::ivalue::Future& future) {
          self->finish_once();
          return future.value();
        },
        c10::ListType::create(c10::TensorType::get()));
  }

 private:
  void finish_once() { std::call_once(finished_, finish_); }

  c10::intrusive_ptr<c10d::Work> first_;
  std::function<void()> finish_;
  std::once_flag finished_;
};

}  // namespace

c10::intrusive_ptr<c10d::Work> then(c10::intrusive_ptr<c10d::Work> work, std::function<void()> finish) {
  return c10::make_intrusive<ThenWork>(std::move(work), std::move(finish));
}

}  // namespace tessera::comm
