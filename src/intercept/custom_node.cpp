#include <tessera/intercept/custom_node.h>

#include <torch/csrc/autograd/variable.h>

#include <type_traits>
#include <utility>

namespace tessera::intercept {

using Hooks = std::remove_reference_t<decltype(torch::autograd::impl::hooks(std::declval<const at::Tensor&>()))>;

struct HooksAside::Aside {
  at::Tensor leaf;
  Hooks hooks;
};

HooksAside::HooksAside(const std::vector<at::Tensor>& leaves) {
  for (const at::Tensor& leaf : leaves) {
    auto& hooks = torch::autograd::impl::hooks(leaf);
    if (!hooks.empty()) aside_.push_back(std::make_unique<Aside>(Aside{leaf, std::exchange(hooks, {})}));
  }
}

HooksAside::~HooksAside() {
  for (const auto& aside : aside_) torch::autograd::impl::hooks(aside->leaf) = std::move(aside->hooks);
}

}  // namespace tessera::intercept
