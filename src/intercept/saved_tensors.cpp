#include <tessera/intercept/saved_tensors.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <atomic>
#include <mutex>
#include <utility>

namespace tessera::intercept {
namespace {

thread_local SavedTensorKeeper* innermost = nullptr;

class SlotHooks : public torch::autograd::SavedVariableHooks {
 public:
  explicit SlotHooks(std::unique_ptr<SavedTensorSlot> slot) : slot_(std::move(slot)) {}
  void call_pack_hook(const at::Tensor& tensor) override { slot_->pack(tensor); }
  at::Tensor call_unpack_hook() override { return slot_->unpack(); }

 private:
  std::unique_ptr<SavedTensorSlot> slot_;
};

/// Note [A front for autograd's engine]
/// Autograd asks its default engine for the hooks of each tensor that it saves. LibTorch's own engine returns none,
/// Python's engine asks Python, and a program can install another engine. Ours is a front: it answers that one call
/// while a scope is open on the thread, and forwards everything else to the engine that was installed before. That one
/// keeps its threads, its queues and the passes that are under way. The front belongs to the process, like LibTorch's
/// engine slot; the open scope belongs to the thread.
class EngineFront : public torch::autograd::Engine {
 public:
  static EngineFront& of_process() {
    static auto* const front = new EngineFront;  // never destroyed: threads may save tensors while the process ends
    return *front;
  }

  /// Installs the front again if another engine has replaced it, as importing Python's torch does.
  static void install() {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    torch::autograd::Engine& current = torch::autograd::Engine::get_default_engine();
    EngineFront& front = of_process();
    if (&current == &front) return;
    front.behind_ = &current;
    torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return of_process(); });
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    if (!innermost) return behind().get_default_saved_variable_hooks();
    auto slot = innermost->make_slot();
    return slot ? std::make_unique<SlotHooks>(std::move(slot)) : nullptr;
  }

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return behind().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      c10::intrusive_ptr<torch::autograd::Node> graph_root, torch::autograd::InputBuffer&& input_buffer) override {
    return behind().execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return behind().make_anomaly_metadata();
  }

 private:
  torch::autograd::Engine& behind() const { return *behind_.load(std::memory_order_acquire); }

  std::atomic<torch::autograd::Engine*> behind_ = nullptr;
};

}  // namespace

SavedTensorScope::SavedTensorScope(SavedTensorKeeper& keeper) : outer_(innermost) {
  EngineFront::install();
  innermost = &keeper;
}

SavedTensorScope::~SavedTensorScope() { innermost = outer_; }

struct SavedByHand::Saved {
  torch::autograd::SavedVariable tensor;
};

SavedByHand::SavedByHand(const at::Tensor& tensor)
    : saved_(std::make_unique<Saved>(Saved{torch::autograd::SavedVariable(tensor, /*is_output=*/false)})) {}
SavedByHand::~SavedByHand() = default;
SavedByHand::SavedByHand(SavedByHand&& other) noexcept = default;
SavedByHand& SavedByHand::operator=(SavedByHand&& other) noexcept = default;

at::Tensor SavedByHand::unpack() const { return saved_->tensor.unpack(); }

}  // namespace tessera::intercept
