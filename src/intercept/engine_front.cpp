#include "intercept/engine_front.h"

#include <tessera/core/error.h>
#include <tessera/intercept/no_backward.h>

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <mutex>
#include <utility>

#include "intercept/acting/bridge.h"
#include "intercept/pass_caller.h"

namespace tessera::intercept {
namespace {

class SlotHooks : public torch::autograd::SavedVariableHooks {
 public:
  explicit SlotHooks(std::unique_ptr<SavedTensorSlot> slot) : slot_(std::move(slot)) {}
  void call_pack_hook(const at::Tensor& tensor) override { slot_->pack(tensor); }
  at::Tensor call_unpack_hook() override { return slot_->unpack(); }

 private:
  std::unique_ptr<SavedTensorSlot> slot_;
};

}  // namespace

namespace {

/// Of this thread's innermost NoBackward; null: none.
thread_local const std::string* why_no_backward = nullptr;

}  // namespace

NoBackward::NoBackward(std::string why) : why_(std::move(why)), outer_(std::exchange(why_no_backward, &why_)) {
  EngineFront::install();
}
NoBackward::~NoBackward() { why_no_backward = outer_; }

EngineFront& EngineFront::of_process() {
  static auto* const front = new EngineFront;  // never destroyed: threads may save tensors while the process ends
  return *front;
}

void EngineFront::install() {
  if (&torch::autograd::Engine::get_default_engine() == &of_process()) return;  // as a rule, and without the lock
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::autograd::Engine& current = torch::autograd::Engine::get_default_engine();
  EngineFront& front = of_process();
  if (&current == &front) return;
  front.behind_ = &current;
  torch::autograd::set_default_engine_stub([]() -> torch::autograd::Engine& { return of_process(); });
}

SavedTensorKeeper*& EngineFront::keeper() {
  thread_local SavedTensorKeeper* innermost = nullptr;
  return innermost;
}

std::atomic<SavedTensorKeeper*>& EngineFront::default_keeper() {
  constinit static std::atomic<SavedTensorKeeper*> keeper = nullptr;
  return keeper;
}

std::unique_ptr<torch::autograd::SavedVariableHooks> EngineFront::get_default_saved_variable_hooks() {
  SavedTensorKeeper* const of_thread = keeper();
  SavedTensorKeeper* const asked = of_thread ? of_thread : default_keeper().load(std::memory_order_acquire);
  if (!asked) return behind().get_default_saved_variable_hooks();
  auto slot = asked->make_slot();
  // Outside of scopes, what is installed behind may have hooks of its own.
  if (!slot && !of_thread) return behind().get_default_saved_variable_hooks();
  return slot ? std::make_unique<SlotHooks>(std::move(slot)) : nullptr;
}

torch::autograd::variable_list EngineFront::execute(const torch::autograd::edge_list& roots,
                                                    const torch::autograd::variable_list& inputs, bool keep_graph,
                                                    bool create_graph, bool accumulate_grad,
                                                    const torch::autograd::edge_list& outputs) {
  if (why_no_backward) throw ConfigError(*why_no_backward);
  const PassCaller caller;
  const OutputEdges edges(outputs);
  return edges.outer_gradients(
      behind().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, edges.inner()));
}

c10::intrusive_ptr<at::ivalue::Future> EngineFront::execute_with_graph_task(
    const std::shared_ptr<torch::autograd::GraphTask>& graph_task, c10::intrusive_ptr<torch::autograd::Node> graph_root,
    torch::autograd::InputBuffer&& input_buffer) {
  return behind().execute_with_graph_task(graph_task, std::move(graph_root), std::move(input_buffer));
}

std::unique_ptr<torch::autograd::AnomalyMetadata> EngineFront::make_anomaly_metadata() {
  return behind().make_anomaly_metadata();
}

}  // namespace tessera::intercept
