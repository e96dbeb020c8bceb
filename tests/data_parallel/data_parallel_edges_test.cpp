// What DataParallel does besides training one plain model.
#include <tessera/core/error.h>
#include <tessera/data_parallel/data_parallel.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "data_parallel/replica_models.h"
#include "support/error_message.h"

namespace tessera {
namespace {

using testing::make_model;
using testing::Mlp;
using testing::MlpImpl;
using testing::random_values;

DataParallelOptions replicas(std::int64_t number) { return DataParallelOptions().num_replicas(number); }

// What forward and backward saw, on whichever thread.
struct Seen {
  std::mutex mutex;
  std::set<std::thread::id> forward_threads;
  std::set<std::thread::id> backward_threads;
  std::set<int> intra_op_threads;
  std::atomic<int> num_forwards = 0;
  std::atomic<bool> grad_mode = false;
  std::atomic<at::ScalarType> output_dtype = at::kDouble;
  std::atomic<bool> fails_in_backward = false;
  std::atomic<bool> meet = false;
  std::atomic<int> num_arrived = 0;
  c10::weak_intrusive_ptr<torch::autograd::Node> graph{c10::intrusive_ptr<torch::autograd::Node>()};
};

struct WatchedImpl : torch::nn::Cloneable<WatchedImpl> {
  WatchedImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(6, 3)); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor output = linear(x);
    if (x.size(0) > 0 && x[0][0].item<double>() == 13) throw std::runtime_error("thirteen");
    wait_for_the_others();
    const std::lock_guard lock(seen->mutex);
    ++seen->num_forwards;
    seen->forward_threads.insert(std::this_thread::get_id());
    seen->intra_op_threads.insert(at::get_num_threads());
    seen->grad_mode = at::GradMode::is_enabled();
    seen->output_dtype = output.scalar_type();
    if (!output.requires_grad()) return output;
    seen->graph = c10::weak_intrusive_ptr<torch::autograd::Node>(output.grad_fn());
    output.register_hook([seen = seen](const at::Tensor& /*gradient*/) {
      const std::lock_guard hook_lock(seen->mutex);
      seen->backward_threads.insert(std::this_thread::get_id());
      if (seen->fails_in_backward) throw std::runtime_error("no way back");
    });
    return output;
  }
  // Two replicas that run one after the other would wait here for ever; the test then fails by its timeout.
  void wait_for_the_others() const {
    if (!seen->meet) return;
    ++seen->num_arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (seen->num_arrived < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    if (seen->num_arrived < 2) throw std::runtime_error("the other replica does not run");
  }

  torch::nn::Linear linear{nullptr};
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();  // copied by clone(): all replicas write into the same
};

TEST(DataParallel, RunsForwardAndBackwardOfTheReplicasOnThreadsOfTheirOwn) {
  const auto model = make_model<WatchedImpl>();
  model->seen->meet = true;
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  parallel.forward(random_values({4, 6}, 1)).sum().backward();
  EXPECT_EQ(model->seen->forward_threads.size(), 2U);
  EXPECT_EQ(model->seen->forward_threads, model->seen->backward_threads);
  const auto first = model->seen->forward_threads;
  model->seen->num_arrived = 0;
  parallel.forward(random_values({4, 6}, 1)).sum().backward();
  EXPECT_EQ(model->seen->forward_threads, first) << "the threads stay";
}

TEST(DataParallel, GivesEachReplicaItsThreadsAndLeavesTheCallersAlone) {
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(2).threads_per_replica(1));
  parallel.forward(random_values({4, 6}, 1));
  EXPECT_EQ(model->seen->intra_op_threads, std::set<int>{1});
  EXPECT_EQ(at::get_num_threads(), 2);
  int of_a_new_thread = 0;
  std::thread([&] { of_a_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(of_a_new_thread, 2);
  at::set_num_threads(before);
}

TEST(DataParallel, SharesTheMemoryOfParametersAndFollowsTheirChanges) {
  const Mlp model;
  const DataParallel<MlpImpl> parallel(model, replicas(3));
  EXPECT_EQ(parallel.num_replicas(), 3U);
  EXPECT_EQ(parallel.replica(0), model.ptr());
  EXPECT_EQ(parallel.replica(2)->first->weight.data_ptr(), model->first->weight.data_ptr());
  EXPECT_NE(parallel.replica(2)->first->weight.unsafeGetTensorImpl(), model->first->weight.unsafeGetTensorImpl());
  Mlp(model)->to(at::kDouble);  // memory of another type
  const at::Tensor input = random_values({6, 6}, 1);
  EXPECT_TRUE(at::allclose(parallel.forward(input), Mlp(model)->forward(input)));
  EXPECT_EQ(parallel.replica(2)->first->weight.data_ptr(), model->first->weight.data_ptr());
}

TEST(DataParallel, LeavesFrozenParametersWithoutGradients) {
  const auto model = make_model<MlpImpl>();
  const DataParallel<MlpImpl> parallel(model, replicas(2));
  model->first->weight.requires_grad_(false);
  parallel.forward(random_values({6, 6}, 1)).sum().backward();
  EXPECT_FALSE(model->first->weight.grad().defined());
  EXPECT_TRUE(model->first->bias.grad().defined());
}

TEST(DataParallel, KeepsNoGraphWithoutGradMode) {
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(parallel.forward(random_values({4, 6}, 1)).requires_grad());
    EXPECT_FALSE(model->seen->grad_mode);
  }
  EXPECT_TRUE(parallel.forward(random_values({4, 6}, 1)).requires_grad());
  EXPECT_TRUE(model->seen->grad_mode);
}

TEST(DataParallel, CarriesAutocastToTheReplicas) {
  const auto model = make_model<WatchedImpl>();
  model->to(at::kFloat);
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor output = parallel.forward(random_values({4, 6}, 1).to(at::kFloat));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model->seen->output_dtype, at::kBFloat16);
}

TEST(DataParallel, LeaksNothingWhenAForwardIsDropped) {
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  at::Tensor output = parallel.forward(random_values({4, 6}, 1));
  ASSERT_FALSE(model->seen->graph.expired());
  output = at::Tensor();
  EXPECT_TRUE(model->seen->graph.expired());
  EXPECT_EQ(model->linear->weight.use_count(), make_model<WatchedImpl>()->linear->weight.use_count() + 2)
      << "the two lists of the replicas";
}

TEST(DataParallel, FreesTheGraphAfterBackwardUnlessAskedToRetainIt) {
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  const at::Tensor loss = parallel.forward(random_values({4, 6}, 1)).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = model->linear->weight.grad().clone();
  loss.backward();
  EXPECT_TRUE(at::allclose(model->linear->weight.grad(), once * 2));
  EXPECT_TRUE(model->seen->graph.expired());
  testing::expect_parts(testing::message_of<ConfigError>([&] { loss.backward(); }),
                        {"backward through DataParallel a second time"});
}

TEST(DataParallel, NamesTheReplicaThatFails) {
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  at::Tensor input = random_values({4, 6}, 1);
  input[2][0] = 13;
  const auto message = testing::message_of<Error>([&] { parallel.forward(input); });
  testing::expect_parts(message, {"replica 1 of 2 (cpu) failed in its forward", "thirteen"});
  try {
    parallel.forward(input);
  } catch (const Error& error) {
    testing::message_of<std::runtime_error>([&] { std::rethrow_if_nested(error); });
  }
  parallel.forward(random_values({4, 6}, 1)).sum().backward();
  EXPECT_TRUE(model->linear->weight.grad().defined()) << "the next step is as ever";
}

TEST(DataParallel, NamesTheReplicaThatFailsInBackward) {
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(2));
  model->seen->fails_in_backward = true;
  const at::Tensor loss = parallel.forward(random_values({4, 6}, 1)).sum();
  const auto message = testing::message_of<Error>([&] { loss.backward(); });
  testing::expect_parts(message, {"replica 0 of 2 (cpu) failed in its backward", "no way back"});
  model->seen->fails_in_backward = false;
  parallel.forward(random_values({4, 6}, 1)).sum().backward();
  EXPECT_TRUE(model->linear->weight.grad().defined()) << "the next step is as ever";
}

struct ThrowsANumberImpl : torch::nn::Cloneable<ThrowsANumberImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& /*x*/) const { throw 13; }
};

TEST(DataParallel, NamesTheReplicaThatFailsWithSomethingElse) {
  const DataParallel<ThrowsANumberImpl> parallel(std::make_shared<ThrowsANumberImpl>(), replicas(2));
  testing::expect_parts(testing::message_of<Error>([&] { parallel.forward(random_values({4, 6}, 1)); }),
                        {"failed in its forward", "an exception of an unknown kind"});
}

TEST(DataParallel, LetsReplicasIdleThatGetNoRows) {
  const auto model = make_model<WatchedImpl>();
  const DataParallel<WatchedImpl> parallel(model, replicas(4));
  EXPECT_EQ(parallel.forward(random_values({2, 6}, 1)).size(0), 2);
  EXPECT_EQ(model->seen->num_forwards, 2);
}

TEST(DataParallel, RefusesGradientsOfGradients) {
  const auto model = make_model<MlpImpl>();
  const DataParallel<MlpImpl> parallel(model, replicas(2));
  const at::Tensor loss = parallel.forward(random_values({4, 6}, 1)).sum();
  const auto message =
      testing::message_of<ConfigError>([&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); });
  testing::expect_parts(message, {"gradients of gradients"});
  model->zero_grad();  // gradients that have graphs lead back to their parameters: nobody would free them
}

struct TwoInputsImpl : torch::nn::Cloneable<TwoInputsImpl> {
  TwoInputsImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(6, 3)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& scale) { return linear(x) * scale; }
  torch::nn::Linear linear{nullptr};
};

TEST(DataParallel, CutsAllInputsAlongTheDimension) {
  const auto model = make_model<TwoInputsImpl>();
  const DataParallel<TwoInputsImpl> parallel(model, replicas(2).dim(1));
  const at::Tensor x = random_values({2, 5, 6}, 1);
  const at::Tensor scale = random_values({2, 5, 1}, 2).requires_grad_();
  const at::Tensor expected = model->forward(x, scale);
  const at::Tensor found = parallel.forward(x, scale);
  EXPECT_TRUE(at::allclose(found, expected));
  found.square().sum().backward();
  const at::Tensor gradient = scale.grad().clone();
  scale.mutable_grad() = at::Tensor();
  expected.square().sum().backward();
  EXPECT_TRUE(at::allclose(gradient, scale.grad()));
  const auto message = testing::message_of<ConfigError>([&] { parallel.forward(x, scale.narrow(1, 0, 3)); });
  testing::expect_parts(message, {"all inputs are cut along dimension 1", "5 and 3"});
}

struct ShiftImpl : torch::nn::Cloneable<ShiftImpl> {
  ShiftImpl() { reset(); }
  void reset() override { shift = register_parameter("shift", torch::zeros({2, 3})); }
  at::Tensor forward(const at::Tensor& x) const { return x + shift; }
  at::Tensor shift;
};

TEST(DataParallel, LeavesTheGradientThatComesInAsItIs) {
  const auto model = make_model<ShiftImpl>();
  const DataParallel<ShiftImpl> parallel(model, replicas(2));
  const at::Tensor gradient = random_values({4, 3}, 1);
  const at::Tensor copy = gradient.clone();
  parallel.forward(random_values({4, 3}, 2)).backward(gradient);  // the gradient of shift is a part of it
  EXPECT_TRUE(at::equal(gradient, copy));
  EXPECT_TRUE(at::equal(model->shift.grad(), copy.narrow(0, 0, 2) + copy.narrow(0, 2, 2)));
}

TEST(DataParallel, ShowsHooksOfParametersTheSumOnce) {
  const auto model = make_model<ShiftImpl>();
  const DataParallel<ShiftImpl> parallel(model, replicas(2));
  int num_calls = 0;
  model->shift.register_hook([&](const at::Tensor& gradient) {
    ++num_calls;
    return gradient * 2;
  });
  for (int step = 1; step <= 2; ++step) {
    parallel.forward(random_values({4, 3}, 2)).sum().backward();
    EXPECT_TRUE(at::equal(model->shift.grad(), at::full({2, 3}, 4.0 * step, at::kDouble))) << model->shift.grad();
    EXPECT_EQ(num_calls, step);
  }
}

struct NormedImpl : torch::nn::Cloneable<NormedImpl> {
  NormedImpl() { reset(); }
  void reset() override { norm = register_module("norm", torch::nn::BatchNorm1d(6)); }
  at::Tensor forward(const at::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST(DataParallel, KeepsTheBuffersOfReplicaZeroAndGivesThemToTheOthers) {
  const auto model = make_model<NormedImpl>();
  const DataParallel<NormedImpl> parallel(model, replicas(2));
  const at::Tensor input = at::cat({random_values({4, 6}, 1), random_values({4, 6}, 2) + 100});
  parallel.forward(input);
  EXPECT_LT(model->norm->running_mean.max().item<double>(), 1);
  EXPECT_GT(parallel.replica(1)->norm->running_mean.min().item<double>(), 5);
  model->eval();
  EXPECT_TRUE(at::allclose(parallel.forward(input), model->forward(input)));
  EXPECT_TRUE(at::equal(parallel.replica(1)->norm->running_mean, model->norm->running_mean));
}

struct NotCloneable : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};

TEST(DataParallel, NamesTheFixForAModelThatCannotBeCloned) {
  const auto message =
      testing::message_of<ConfigError>([] { DataParallel<NotCloneable>(std::make_shared<NotCloneable>()); });
  testing::expect_parts(message, {"NotCloneable", "torch::nn::Cloneable", "reset()"});
}

/// Clones itself as it likes.
struct Deviant : torch::nn::Module {
  explicit Deviant(bool shares) {
    const at::Tensor first = register_parameter("first", torch::zeros({2}));
    register_parameter("second", shares ? first : torch::zeros({2}));
  }
  at::Tensor forward(const at::Tensor& x) const { return x; }
  std::shared_ptr<Module> clone(const std::optional<at::Device>& /*device*/) const override { return cloned; }
  std::shared_ptr<Module> cloned;
};

TEST(DataParallel, RefusesAClonedModelThatIsAnother) {
  const auto refusal_of = [](std::shared_ptr<torch::nn::Module> clone) {
    const auto model = std::make_shared<Deviant>(false);
    model->cloned = std::move(clone);
    return testing::message_of<ConfigError>([&] { DataParallel<Deviant>(model, replicas(2)); });
  };
  testing::expect_parts(refusal_of(torch::nn::Linear(2, 2).ptr()),
                        {"the clone of the model has no parameter \"first\"", "reset()"});
  testing::expect_parts(refusal_of(std::make_shared<Deviant>(true)),
                        {"\"second\" is shared in the clone of the model"});
}

TEST(DataParallel, RefusesOptionsThatContradictEachOther) {
  const auto refused = [](const DataParallelOptions& options) {
    return testing::message_of<ConfigError>([&] { DataParallel<MlpImpl>(make_model<MlpImpl>(), options); });
  };
  testing::expect_parts(refused(replicas(3).devices({at::kCPU, at::kCPU})), {"2 devices for 3 replicas"});
  testing::expect_parts(refused(replicas(-1)), {"num_replicas", "-1"});
  testing::expect_parts(refused(replicas(2).threads_per_replica(0)), {"threads_per_replica", "0"});
  testing::expect_parts(refused(DataParallelOptions().devices({at::kMeta})),
                        {"the model must lie on the first device, meta", "first.weight"});
  testing::expect_parts(refused(DataParallelOptions().devices({at::kCPU, at::kMeta})),
                        {"replicas need devices of one kind", "cpu and meta"});
  testing::expect_parts(
      testing::message_of<ConfigError>([] { DataParallel<MlpImpl>(std::shared_ptr<MlpImpl>(), replicas(2)); }),
      {"found an empty pointer"});
}

TEST(DataParallel, ClonesWithoutTouchingTheRandomGenerator) {
  const auto model = make_model<MlpImpl>();
  torch::manual_seed(5);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(5);
  const DataParallel<MlpImpl> parallel(model, replicas(2));
  EXPECT_TRUE(at::equal(at::rand({3}), expected));
}

}  // namespace
}  // namespace tessera
