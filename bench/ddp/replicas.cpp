// Steps of training with two replicas in one process: DataParallel, whose replicas stay, against LibTorch's way, which
// clones the model for each step. LibTorch's data_parallel() needs the headers of CUDA; here the same is written out:
// a clone for each replica, forwards in at::parallel_for, one backward through all of them, gradients summed.
//
//   bench_replicas [mlp|gpt] [steps] [batch]      prints {"contestant": ..., "model": ..., "step": ..., "ms": ...}
#include <tessera/data_parallel/data_parallel.h>

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>

namespace {

constexpr int kNumReplicas = 2;

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  MlpImpl() { reset(); }
  void reset() override {
    layers = register_module(
        "layers", torch::nn::Sequential(torch::nn::Linear(512, 2048), torch::nn::ReLU(), torch::nn::Linear(2048, 2048),
                                        torch::nn::ReLU(), torch::nn::Linear(2048, 512)));
  }
  at::Tensor forward(const at::Tensor& x) { return layers->forward(x); }
  static at::Tensor sample(std::int64_t batch) { return at::randn({batch, 512}); }

  torch::nn::Sequential layers{nullptr};
};

constexpr std::int64_t kWidth = 192;
constexpr std::int64_t kHeads = 6;

struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  BlockImpl() { reset(); }
  void reset() override {
    const auto norm = [] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})); };
    norm1 = register_module("norm1", norm());
    norm2 = register_module("norm2", norm());
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(at::Tensor x) {
    const auto parts = qkv(norm1(x)).view({x.size(0), x.size(1), 3, kHeads, kWidth / kHeads}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], std::nullopt, 0, /*is_causal=*/true);
    x = x + out(mixed.transpose(1, 2).reshape(x.sizes()));
    return x + down(at::gelu(up(norm2(x))));
  }

  torch::nn::LayerNorm norm1{nullptr};
  torch::nn::LayerNorm norm2{nullptr};
  torch::nn::Linear qkv{nullptr};
  torch::nn::Linear out{nullptr};
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};
TORCH_MODULE(Block);

struct GptImpl : torch::nn::Cloneable<GptImpl> {
  GptImpl() { reset(); }
  void reset() override {
    embed = register_module("embed", torch::nn::Embedding(2000, kWidth));
    for (std::size_t i = 0; i < 4; ++i) blocks[i] = register_module("block" + std::to_string(i), Block());
    head = register_module("head", torch::nn::Linear(kWidth, 2000));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embed(tokens);
    for (auto& block : blocks) x = block(x);
    return head(x);
  }
  static at::Tensor sample(std::int64_t batch) { return at::randint(2000, {batch, 64}, at::kLong); }

  torch::nn::Embedding embed{nullptr};
  std::array<Block, 4> blocks{Block(nullptr), Block(nullptr), Block(nullptr), Block(nullptr)};
  torch::nn::Linear head{nullptr};
};

template <class Model>
class Clones {
 public:
  explicit Clones(std::shared_ptr<Model> model) : model_(std::move(model)) {}

  at::Tensor forward(const at::Tensor& input) {
    replicas_.clear();
    for (int i = 0; i < kNumReplicas; ++i) {
      replicas_.push_back(std::dynamic_pointer_cast<Model>(model_->clone(at::Device(at::kCPU))));
    }
    const auto pieces = input.tensor_split(kNumReplicas);
    std::vector<at::Tensor> outputs(pieces.size());
    at::parallel_for(0, kNumReplicas, 1, [&](std::int64_t begin, std::int64_t end) {
      const torch::AutoGradMode with_grad(true);
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        outputs[i] = replicas_[i]->forward(pieces[i]);
      }
    });
    return at::cat(outputs);
  }

  void sum_gradients() {
    const auto originals = model_->parameters();
    for (const auto& replica : replicas_) {
      const auto parameters = replica->parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        at::Tensor& sum = originals[i].mutable_grad();
        sum.defined() ? sum.add_(parameters[i].grad()) : sum = parameters[i].grad();
      }
    }
  }

 private:
  std::shared_ptr<Model> model_;
  std::vector<std::shared_ptr<Model>> replicas_;
};

template <class Model>
class Contest {
 public:
  Contest(std::string model_name, std::int64_t batch)
      : model_name_(std::move(model_name)), parallel_(ours_), input_(Model::sample(batch)) {}

  void run(int num_steps) {
    for (int step = -2; step < num_steps; ++step) {  // two to warm up
      time("tessera", step, *ours_, [&] { return parallel_.forward(input_); });
      time(
          "libtorch_clones", step, *theirs_, [&] { return clones_.forward(input_); }, [&] { clones_.sum_gradients(); });
      time("one_model", step, *single_, [&] { return single_->forward(input_); });
    }
  }

 private:
  void time(
      const std::string& contestant, int step, Model& model, const std::function<at::Tensor()>& forward,
      const std::function<void()>& after_backward = [] {}) {
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor loss = forward().square().mean();
    loss.backward();
    const at::NoGradGuard no_grad;
    after_backward();
    for (const at::Tensor& parameter : model.parameters()) {
      parameter.sub_(parameter.grad(), 1e-3);
      parameter.mutable_grad() = at::Tensor();
    }
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (step < 0) return;
    std::cout << R"({"contestant": ")" << contestant << R"(", "model": ")" << model_name_ << R"(", "step": )" << step
              << R"(, "loss": )" << loss.template item<double>() << R"(, "ms": )" << taken.count() << "}" << std::endl;
  }

  static std::shared_ptr<Model> make() {
    torch::manual_seed(1);
    return std::make_shared<Model>();
  }

  std::string model_name_;
  std::shared_ptr<Model> ours_ = make();
  std::shared_ptr<Model> theirs_ = make();
  std::shared_ptr<Model> single_ = make();
  tessera::DataParallel<Model> parallel_;
  Clones<Model> clones_{theirs_};
  at::Tensor input_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : "mlp";
  const int num_steps = argc > 2 ? std::stoi(argv[2]) : 20;
  const std::int64_t batch = argc > 3 ? std::stoll(argv[3]) : 32;
  if (model == "gpt") {
    Contest<GptImpl>(model, batch).run(num_steps);
  } else if (model == "mlp") {
    Contest<MlpImpl>(model, batch).run(num_steps);
  } else {
    std::cerr << "usage: bench_replicas [mlp|gpt] [steps] [batch]\n";
    return 2;
  }
}
