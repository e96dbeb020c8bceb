#include "data_parallel/hooks/average.h"

#include <tessera/launch/machine.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <string>

namespace tessera::data_parallel {
namespace {

/// Note [Overlap with backward]
/// A network carries gradients while the cores compute. In shared memory the cores themselves add them up: where all of
/// them compute already, doing so meanwhile only takes turns with backward, which costs 3% of a step more than adding
/// up at its end.
bool overlap_pays(const Communicator& comm) {
  const std::string backend = comm.backend();
  if (backend != "shm" && backend != "threads") return true;
  return std::size_t{1} * comm.size() * at::get_num_threads() < launch::allowed_cpus().size();
}

}  // namespace

GradientHook::Finish start_average(const at::Tensor& tensor, int divisor, const Communicator& comm) {
  // The communicator divides while the values are in its registers; another divisor costs a pass of its own.
  const bool divides = divisor == comm.size();
  const ReduceOp op = divides ? ReduceOp::kAvg : ReduceOp::kSum;
  std::function<void()> reduce;
  if (overlap_pays(comm)) {
    reduce = [work = comm.all_reduce_async(tensor, op)]() mutable { work.wait(); };
  } else {
    reduce = [comm, tensor, op] { comm.all_reduce(tensor, op); };
  }
  return [reduce, tensor, divisor, divides] {
    const at::NoGradGuard no_grad;
    reduce();
    if (!divides && divisor != 1) at::Tensor(tensor).div_(divisor);
    return tensor;
  };
}

bool same_tensors(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& one, const at::Tensor& other) { return one.is_same(other); });
}

at::ScalarType compute_dtype(const at::Tensor& gradients) {
  return gradients.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace tessera::data_parallel
