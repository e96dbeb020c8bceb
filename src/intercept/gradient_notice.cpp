#include <tessera/intercept/gradient_notice.h>

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <utility>

namespace tessera::intercept {

// Not a hook that changes gradients: Tensor::register_hook drops those that it did not make itself.
class GradientNotice::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::function<void()> notice, std::unique_ptr<PostAccumulateGradHook> before)
      : notice_(std::move(notice)), before_(std::move(before)) {}
  void operator()(const torch::autograd::Variable& tensor) override {
    if (before_) (*before_)(tensor);
    if (notice_) notice_();
  }
  /// For one that another hook lies over, and so must stay.
  void be_silent() { notice_ = nullptr; }
  std::unique_ptr<PostAccumulateGradHook> take_before() { return std::move(before_); }

 private:
  std::function<void()> notice_;
  std::unique_ptr<PostAccumulateGradHook> before_;  // a tensor has room for one
};

GradientNotice::GradientNotice(at::Tensor parameter, std::function<void()> notice) : parameter_(std::move(parameter)) {
  torch::autograd::impl::materialize_autograd_meta(parameter_);  // one that was always frozen has none
  auto& place = torch::autograd::impl::post_acc_grad_hooks(parameter_);
  auto hook = std::make_unique<Hook>(std::move(notice), std::move(place));
  hook_ = hook.get();
  torch::autograd::impl::set_post_acc_grad_hooks(parameter_, std::move(hook));
}

GradientNotice::~GradientNotice() { close(); }

GradientNotice::GradientNotice(GradientNotice&& other) noexcept
    : parameter_(std::move(other.parameter_)), hook_(std::exchange(other.hook_, nullptr)) {}

GradientNotice& GradientNotice::operator=(GradientNotice&& other) noexcept {
  if (this == &other) return *this;
  close();
  parameter_ = std::move(other.parameter_);
  hook_ = std::exchange(other.hook_, nullptr);
  return *this;
}

void GradientNotice::close() noexcept {
  if (!hook_) return;
  auto& place = torch::autograd::impl::post_acc_grad_hooks(parameter_);
  if (place.get() == hook_) {
    place = hook_->take_before();
  } else {
    hook_->be_silent();
  }
  hook_ = nullptr;
}

}  // namespace tessera::intercept
