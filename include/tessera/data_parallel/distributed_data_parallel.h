#pragma once

#include <tessera/data_parallel/distribute.h>

#include <memory>
#include <utility>

namespace tessera {

/// What the wrapper is made of: a distributed model whose operators nobody watches, and the call that announces each
/// forward instead.
DistributedModel distribute_wrapped(std::shared_ptr<torch::nn::Module> model, const Ranks& ranks,
                                    const DdpOptions& options);
void begin_forward(const DistributedModel& model);

/// A model and its handle in one, for programs that call the wrapper's `forward` instead of the model's. Then no
/// listener watches the operators. Otherwise the same as `distribute`.
///
///   tessera::DistributedDataParallel<NetImpl> net(model, world);
///   net.forward(x).sum().backward();
template <class Model>
class DistributedDataParallel {
 public:
  /// Collective: over `ranks`. Throws as `distribute` does.
  DistributedDataParallel(std::shared_ptr<Model> model, const Ranks& ranks, const DdpOptions& options = {})
      : model_(std::move(model)), handle_(distribute_wrapped(model_, ranks, options)) {}

  template <class Holder>
    requires requires(const Holder& holder) { std::shared_ptr<Model>(holder.ptr()); }
  DistributedDataParallel(const Holder& model, const Ranks& ranks, const DdpOptions& options = {})
      : DistributedDataParallel(std::shared_ptr<Model>(model.ptr()), ranks, options) {}

  /// As the model's. Under NoGradGuard nothing is synchronised.
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    begin_forward(handle_);
    return model_->forward(std::forward<Inputs>(inputs)...);
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }

  Model& module() const { return *model_; }
  Model* operator->() const { return model_.get(); }
  /// For no_sync(), join(), statistics() and the rest.
  const DistributedModel& handle() const { return handle_; }

 private:
  std::shared_ptr<Model> model_;
  DistributedModel handle_;
};

}  // namespace tessera
