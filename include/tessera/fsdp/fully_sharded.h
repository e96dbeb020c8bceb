#pragma once

#include <tessera/fsdp/fully_shard.h>

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera {

/// What FullySharded is made of, without the type of the block.
class ShardedBlock : public torch::nn::Module {
 public:
  /// For parameters(), no_sync(), full_state_dict() and the rest. Names are those of the block.
  const ShardedModel& handle() const { return handle_; }

 protected:
  ShardedBlock(const std::shared_ptr<torch::nn::Module>& block, const Ranks& ranks, const FsdpOptions& options);

  /// The parameters are whole as long as it lives; with a graph, possibly until the end of backward.
  class Forward {
   public:
    explicit Forward(const ShardedModel& handle);
    ~Forward();
    Forward(const Forward&) = delete;
    Forward& operator=(const Forward&) = delete;

   private:
    const ShardedModel& handle_;
  };
  /// Backward gathers the parameters again when it comes to this tensor.
  void gather_again_at(const at::Tensor& output) const;

  template <class Output>
  void gather_again_at_all(const Output& outputs) const {
    if constexpr (std::is_convertible_v<const Output&, at::Tensor>) {
      gather_again_at(outputs);
    } else if constexpr (requires { outputs.has_value(); }) {
      if (outputs.has_value()) gather_again_at_all(*outputs);
    } else if constexpr (requires { outputs.begin(); }) {
      for (const auto& output : outputs) gather_again_at_all(output);
    } else {
      static_assert(
          requires { std::tuple_size<Output>::value; },
          "the forward of a FullySharded block returns tensors, or tuples, containers or optionals of them");
      std::apply([&](const auto&... output) { (gather_again_at_all(output), ...); }, outputs);
    }
  }

 private:
  ShardedModel handle_;
};

namespace detail {

/// A forward of any kind.
template <class Derived, class Block>
struct BlockForward {  // NOLINT(bugprone-crtp-constructor-accessibility): a base of FullySharded alone
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    return static_cast<Derived*>(this)->run(std::forward<Inputs>(inputs)...);
  }
};

/// The very signature of the block's, where it has one: torch::nn::Sequential asks for it.
template <class Derived, class Signature>
struct ForwardLike;
template <class Derived, class Class, class Output, class... Inputs>
struct ForwardLike<Derived, Output (Class::*)(Inputs...)> {
  Output forward(Inputs... inputs) { return static_cast<Derived*>(this)->run(std::forward<Inputs>(inputs)...); }
};
template <class Derived, class Class, class Output, class... Inputs>
struct ForwardLike<Derived, Output (Class::*)(Inputs...) const> : ForwardLike<Derived, Output (Class::*)(Inputs...)> {};

template <class Derived, class Block>
  requires requires { &Block::forward; }
struct BlockForward<Derived, Block> : ForwardLike<Derived, decltype(&Block::forward)> {};

}  // namespace detail

/// The explicit form of sharding, for those who call the wrapper's `forward`: a block's parameters are gathered around
/// its forward and, when backward comes to its outputs, again; they are released when their gradients are complete.
/// Nothing listens to operators while it computes (except with `reproducible`), and no order is learnt: nothing is
/// gathered ahead.
///
///   tessera::FullySharded<BlockImpl> block(std::make_shared<BlockImpl>(...), world, options);
///   block.forward(x).sum().backward();
///
/// All parameters of the block are gathered together, whatever `auto_wrap` says; blocks inside it that are FullySharded
/// themselves look after their own. Wrap the blocks of a model and then the model: its own unit holds the rest.
/// A module: `register_module` and torch::nn::Sequential take it.
template <class Block>
class FullySharded : public ShardedBlock, public detail::BlockForward<FullySharded<Block>, Block> {
 public:
  /// Collective: over `ranks`. Throws as `fully_shard` does.
  FullySharded(std::shared_ptr<Block> block, const Ranks& ranks, const FsdpOptions& options = {})
      : ShardedBlock(block, ranks, options), block_(std::move(block)) {}

  template <class Holder>
    requires requires(const Holder& holder) { std::shared_ptr<Block>(holder.ptr()); }
  FullySharded(const Holder& block, const Ranks& ranks, const FsdpOptions& options = {})
      : FullySharded(std::shared_ptr<Block>(block.ptr()), ranks, options) {}

  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return run(std::forward<Inputs>(inputs)...);
  }
  Block& module() const { return *block_; }

 private:
  friend detail::BlockForward<FullySharded<Block>, Block>;
  template <class Derived, class Signature>
  friend struct detail::ForwardLike;

  template <class... Inputs>
  auto run(Inputs&&... inputs) {
    const Forward whole(handle());
    auto outputs = block_->forward(std::forward<Inputs>(inputs)...);
    gather_again_at_all(outputs);
    return outputs;
  }

  std::shared_ptr<Block> block_;
};

/// The FullySharded blocks of a model, itself among them if it is one, in the order of its modules.
std::vector<ShardedModel> sharded_blocks_of(const torch::nn::Module& model);
/// What to build an optimizer on.
std::vector<at::Tensor> parameters_of(const std::vector<ShardedModel>& blocks);

}  // namespace tessera
