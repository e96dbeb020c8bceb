#pragma once

#include <tessera/intercept/acting_tensor.h>
#include <tessera/intercept/operator_call.h>

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace tessera::testing {

/// A kind of acting tensors for tests: computes what a plain tensor would, and counts.
class BoxKind : public intercept::ActingKind {
 public:
  explicit BoxKind(int level = 1) : level_(level) {}
  std::string name() const override { return "box of level " + std::to_string(level_); }
  int level() const override { return level_; }

  at::Tensor box(at::Tensor inner) const {
    const auto sizes = inner.sizes().vec();
    const auto strides = inner.strides().vec();
    return intercept::make_acting(std::move(inner), data(), sizes, strides);
  }
  intercept::ActingDataPtr data() const { return c10::make_intrusive<intercept::ActingData>(*this); }

  void call(intercept::OperatorCall& call) const override {
    ++num_calls;
    {
      const std::lock_guard lock(mutex_);
      names.push_back(call.name());
    }
    std::vector<std::pair<at::Tensor, at::Tensor>> written;  // and the tensor that stands for it
    call.for_each_tensor([&](std::size_t index, const at::Tensor& tensor) -> at::Tensor {
      if (!intercept::acting_data(tensor, *this)) return {};
      if (!call.writes(index)) return intercept::inner_of(tensor);
      written.emplace_back(tensor, intercept::inner_for_write(tensor));
      return written.back().second;
    });
    call.run();
    for (const auto& [tensor, inner] : written) {
      if (intercept::is_wrapper(tensor)) intercept::set_inner(tensor, inner, inner.sizes(), inner.strides());
    }
    call.for_each_result([&](std::size_t, const at::Tensor& result) -> at::Tensor {
      for (const auto& [tensor, inner] : written) {
        if (inner.is_same(result)) return tensor;
      }
      return box(result);
    });
  }
  at::Tensor inner_gradient(const at::Tensor& gradient, const intercept::ActingData&) const override {
    return intercept::acting_data(gradient, *this) ? intercept::inner_of(gradient) : gradient;
  }
  at::Tensor outer_gradient(const at::Tensor& gradient, const intercept::ActingDataPtr&) const override {
    return box(gradient);
  }

  mutable std::atomic<int> num_calls = 0;
  mutable std::vector<std::string> names;

 private:
  mutable std::mutex mutex_;  // ranks may be threads
  int level_;
};

}  // namespace tessera::testing
