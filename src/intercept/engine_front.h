#pragma once

#include <tessera/intercept/saved_tensors.h>

#include <torch/csrc/autograd/engine.h>

#include <atomic>
#include <memory>

namespace tessera::intercept {

/// Note [A front for autograd's engine]
/// Autograd asks its default engine for the hooks of each tensor that it saves, and to run each pass. LibTorch's own
/// engine has no such hooks, Python's engine asks Python, and a program can install another engine. Ours is a front: it
/// answers the first question while a scope is open on the thread, exchanges the edges of wrappers in the second (see
/// acting/bridge.h), and forwards everything else to the engine that was installed before. That one keeps its threads,
/// its queues and the passes that are under way. The front belongs to the process, like LibTorch's engine slot; the
/// open scope belongs to the thread.
class EngineFront : public torch::autograd::Engine {
 public:
  /// Installs the front again if another engine has replaced it, as importing Python's torch does.
  static void install();
  /// Of this thread's innermost scope; null: none.
  static SavedTensorKeeper*& keeper();
  /// Asked where no scope is open, on every thread; null: none.
  static std::atomic<SavedTensorKeeper*>& default_keeper();

  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override;
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override;
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      c10::intrusive_ptr<torch::autograd::Node> graph_root, torch::autograd::InputBuffer&& input_buffer) override;
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override;

 private:
  static EngineFront& of_process();
  torch::autograd::Engine& behind() const { return *behind_.load(std::memory_order_acquire); }

  std::atomic<torch::autograd::Engine*> behind_ = nullptr;
};

}  // namespace tessera::intercept
