#pragma once

#include <tessera/shard/slice.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/random_models/node.h"

namespace tessera {
class World;
class Communicator;
class PromisedGradients;
}  // namespace tessera

namespace tessera::testing {

struct Config;

/// An extent of a parameter, row by row, and what belongs to it. All one-dimensional.
struct Piece {
  std::string name;  ///< of the parameter
  Slice slice;       ///< of it
  at::Tensor values;
  at::Tensor gradient;                      ///< undefined where there is none
  std::map<std::string, at::Tensor> state;  ///< of the optimizer
};

/// A forward, and a backward, of several batches one after the other: of the mean of their losses.
struct Pass {
  std::vector<std::int64_t> numbers;  ///< of batches
  std::vector<double> weights;        ///< of their losses
  double loss_scale = 1;              ///< of the gradients
  double factor = 1;                  ///< of the losses
  bool trains = true;
};

/// What a training program has in its hands, in one process or on a rank. Actions are written against it, once.
class User {
 public:
  virtual ~User() = default;

  Node& model() { return *model_; }
  virtual at::Tensor forward(const at::Tensor& x, const Batch& batch) { return model_->forward(x, batch); }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  /// On `trained()`: SGD, SGD with momentum, Adam, AdamW, by `way`; with one group of parameters or two.
  void make_optimizer(std::int64_t way);
  std::int64_t way_of_optimizer() const { return way_of_optimizer_; }

  /// What a pipeline does in one step. Returns the mean.
  virtual at::Tensor pass(const Pass& pass, int part);
  /// Whether `pass` is the way to run the model.
  bool is_cut() const { return is_cut_; }
  bool has_stages() const { return has_stages_; }
  at::Device device() const { return device_; }
  /// Whether this rank has bytes of a tensor of the model.
  virtual bool is_here(const at::Tensor& /*tensor*/) const { return true; }

  /// Calls `run` for each rank whose batches this user computes.
  virtual void for_each_part(const std::function<void(int part)>& run) = 0;
  /// How much of a part's loss counts.
  virtual double share() const = 0;
  /// What an optimizer is built on.
  virtual std::vector<std::pair<std::string, at::Tensor>> trained() const = 0;
  /// As long as what it returns lives: gradients are not averaged; all parameters are whole.
  virtual std::shared_ptr<void> without_sync() = 0;
  virtual std::shared_ptr<PromisedGradients> promise_gradients() = 0;
  virtual std::shared_ptr<void> gather(bool write_back) = 0;
  virtual double clip(double max_norm) = 0;
  virtual std::map<std::string, at::Tensor> full_state() = 0;
  virtual void load(const std::map<std::string, at::Tensor>& state) = 0;
  /// What this user holds of the model, without asking anybody.
  virtual std::vector<Piece> pieces() = 0;
  /// After a failure: as new, with the same weights.
  virtual void begin_again() = 0;
  /// torch::load() gives parameters other memory, and views of before keep the old one; but it writes to the memory of
  /// a parameter that is cut, as the guide says.
  void drop_old_views() {
    if (is_cut_) kept.clear();
  }
  virtual void resize_buckets(std::int64_t /*num_bytes*/) {}

  /// Of a loss scaler: what losses are multiplied by; divides the gradients, steps if they are finite, and says so.
  virtual double scale() const = 0;
  virtual bool step_scaled() = 0;
  virtual void begin_scaling() = 0;  ///< as new
  /// Weights and optimizer as they were saved; nothing if they were not.
  virtual void save_checkpoint() = 0;
  virtual void load_checkpoint() = 0;
  /// A step for each batch, with its ranks that have one. `pass` goes forward and backward.
  virtual void train_joined(const std::function<int(int part)>& num_batches, bool divide_by_initial_size,
                            const std::function<void(int part, int index)>& pass) = 0;
  /// A mistake: ranks make different calls, and catch the errors.
  virtual void mismatch(std::int64_t /*way*/) {}
  /// Over the ranks that are even, or odd, like this one.
  virtual double sum_in_half(int part, const std::function<double(int rank)>& value) = 0;

  /// Things that programs keep.
  std::vector<at::Tensor> kept;  ///< views of parameters
  std::vector<std::shared_ptr<void>> scopes;

 protected:
  User(NodePtr model, const Config& config);

  NodePtr model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;

 private:
  at::Device device_;
  bool is_cut_;
  bool has_stages_;
  bool has_files_;
  std::int64_t way_of_optimizer_ = 0;
};

/// One that holds the whole model: its optimizer has the model's own parameters.
class WholeUser : public User {
 public:
  std::vector<std::pair<std::string, at::Tensor>> trained() const override;
  std::shared_ptr<void> gather(bool /*write_back*/) override { return nullptr; }
  double clip(double max_norm) override;
  std::map<std::string, at::Tensor> full_state() override;
  void load(const std::map<std::string, at::Tensor>& state) override;
  std::vector<Piece> pieces() override;

 protected:
  using User::User;
};

std::set<const c10::TensorImpl*> parameters_in(const torch::optim::Optimizer& optimizer);

/// The model of a program.
NodePtr make_model(std::uint64_t seed, const Config& config, bool dense);
/// Of a model whose parameters can be read and written whole.
std::map<std::string, at::Tensor> whole_state_of(const torch::nn::Module& model);
void load_whole_state(const torch::nn::Module& model, const std::map<std::string, at::Tensor>& state);
/// As a plain tensor: what all ranks hold together of one that is cut.
at::Tensor whole_of(const at::Tensor& tensor);

/// Some views of a model's parameters, from before it is spread.
std::vector<at::Tensor> early_views_of(const torch::nn::Module& model);

/// The reference: one process that computes the batches of all ranks.
std::unique_ptr<User> make_alone(std::uint64_t seed, const Config& config);
/// Collective.
std::unique_ptr<User> make_on_rank(std::uint64_t seed, const Config& config, const Communicator& comm);

/// A tensor's pieces of an optimizer's state, by names.
std::map<std::string, at::Tensor> state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter);

}  // namespace tessera::testing
