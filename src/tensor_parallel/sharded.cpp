#include "tensor_parallel/sharded.h"

#include <tessera/core/error.h>

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "tensor_parallel/collectives.h"
#include "tensor_parallel/rules/rules.h"

namespace tessera::tp {
namespace {

using intercept::ActingData;
using intercept::ActingDataPtr;
using intercept::OperatorCall;

thread_local const OperatorCall* current_call = nullptr;

class CutKind : public intercept::ActingKind {
 public:
  std::string name() const override { return "tensor of tensor parallelism"; }
  int level() const override { return 10; }  // around plain and read-only tensors, inside those of a pipeline

  void call(OperatorCall& call) const override {
    const CurrentCall current(call);
    if (TensorAxis::is_any_held()) {
      call.for_each_tensor([&](std::size_t, const at::Tensor& tensor) -> at::Tensor {
        if (const CutDataPtr cut = cut_of(tensor)) cut->axis().require_not_held(cut->parameter(), call.name());
        return {};
      });
    }
    const auto rule = find_rule(call.op());
    if (rule) {
      rule(call);
    } else {
      gather_and_run(call);
    }
  }

  at::Tensor plain(const at::Tensor& wrapper) const override { return whole_of(wrapper); }
  at::Tensor inner_gradient(const at::Tensor& gradient, const ActingData& data) const override {
    const auto& cut = static_cast<const CutData&>(data);
    const Operand operand = read(gradient);
    if (operand.cut && operand.cut->cut() == cut.cut()) return operand.local;
    return take_part_of(whole_gradient(gradient), shared(cut));
  }
  at::Tensor outer_gradient(const at::Tensor& gradient, const ActingDataPtr& data) const override {
    return wrap(gradient, c10::static_intrusive_pointer_cast<CutData>(data));
  }
};

}  // namespace

void CutData::require_axis_of(const CutData& other) const {
  if (axis_ == other.axis_) return;
  throw ConfigError("a tensor of " + *parameter_ + " and one of " + *other.parameter_ +
                    " meet in one operator, but tensor parallelism cuts them for different groups of ranks: give both "
                    "models the same call of tensor_parallel()");
}

bool CutData::has_indices_of(const CutData& other) const {
  require_axis_of(other);
  return cut_.blocks() == other.cut_.blocks() && cut_.granule() == other.cut_.granule() && size_ == other.size_;
}

CutDataPtr shared(const CutData& cut) { return CutDataPtr::unsafe_reclaim_from_nonowning(const_cast<CutData*>(&cut)); }

const intercept::ActingKind& cut_kind() {
  static const CutKind kind;
  return kind;
}

CutData::CutData(std::shared_ptr<TensorAxis> axis, const Placement& cut, std::int64_t size,
                 const std::string* parameter)
    : ActingData(cut_kind()),
      axis_(std::move(axis)),
      cut_(cut),
      size_(size),
      local_size_(cut.local_size(size, axis_->size(), axis_->rank())),
      parameter_(parameter) {}

CutDataPtr cut_of(const at::Tensor& tensor) {
  auto data = intercept::acting_data(tensor, cut_kind());
  return data ? c10::static_intrusive_pointer_cast<CutData>(std::move(data)) : CutDataPtr();
}

CutDataPtr make_cut(std::shared_ptr<TensorAxis> axis, const Placement& cut, std::int64_t size,
                    const std::string* parameter) {
  const auto chunk = std::max<std::int64_t>(1, cut.chunk(size, axis->size()));
  return c10::make_intrusive<CutData>(std::move(axis), Placement::shard(cut.dim(), cut.blocks(), chunk), size,
                                      parameter);
}

CutDataPtr moved_cut(const CutDataPtr& cut, std::int64_t dim, std::int64_t blocks, std::int64_t chunk,
                     std::int64_t size) {
  return c10::make_intrusive<CutData>(cut->shared_axis(), Placement::shard(dim, blocks, chunk), size, cut->parameter());
}

CutDataPtr moved_cut(const CutDataPtr& cut, std::int64_t dim) {
  if (cut->dim() == dim) return cut;
  return moved_cut(cut, dim, cut->cut().blocks(), cut->cut().granule(), cut->size());
}

std::vector<std::int64_t> Operand::sizes() const {
  auto sizes = local.sizes().vec();
  if (cut) sizes[static_cast<std::size_t>(cut->dim())] = cut->size();
  return sizes;
}

std::int64_t Operand::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes()) count *= size;
  return count;
}

Operand read(const at::Tensor& tensor) {
  CutDataPtr cut = cut_of(tensor);
  if (!cut) return {tensor, {}};
  return {intercept::inner_of(tensor), std::move(cut)};
}

namespace {

using Lengths = c10::SmallVector<std::int64_t, 6>;

/// Turns the strides of a part into those that the whole would have in one process: programs ask whether a tensor is
/// contiguous, and random numbers are drawn in the order of memory.
void whole_strides(const at::Tensor& local, const CutData& cut, const Lengths& sizes, Lengths& strides) {
  if (local.is_contiguous() || cut.local_size() == 0) {
    std::int64_t stride = 1;
    for (std::size_t d = sizes.size(); d-- > 0; stride *= std::max<std::int64_t>(1, sizes[d])) strides[d] = stride;
    return;
  }
  // Memory outside of the cut dimension is as many times larger as that dimension is.
  const std::int64_t inner = strides[static_cast<std::size_t>(cut.dim())];
  for (std::int64_t& stride : strides) {
    if (stride > inner) stride = stride / cut.local_size() * cut.size();
  }
}

}  // namespace

at::Tensor wrap(at::Tensor local, const CutDataPtr& cut) {
  Lengths sizes(local.sizes().begin(), local.sizes().end());
  Lengths strides(local.strides().begin(), local.strides().end());
  sizes[static_cast<std::size_t>(cut->dim())] = cut->size();
  whole_strides(local, *cut, sizes, strides);
  return wrap(std::move(local), cut, strides);
}

at::Tensor wrap(at::Tensor local, const CutDataPtr& cut, at::IntArrayRef strides) {
  const auto dim = static_cast<std::size_t>(cut->dim());
  Lengths sizes(local.sizes().begin(), local.sizes().end());
  if (sizes[dim] != cut->local_size()) {
    throw InternalError("a part of " + std::to_string(sizes[dim]) + " indices instead of " +
                        std::to_string(cut->local_size()) + " came from " +
                        (current_call ? current_call->name() : "nowhere"));
  }
  sizes[dim] = cut->size();
  return intercept::make_acting(std::move(local), cut, sizes, strides);
}

namespace {

using Order = c10::SmallVector<std::size_t, 6>;

/// The dimensions from the outermost in memory to the innermost.
Order order_of(at::IntArrayRef strides) {
  Order order(strides.size());
  std::iota(order.begin(), order.end(), 0);
  // By insertion: few, most often in order, and the library's stable sort takes memory.
  for (std::size_t i = 1; i < order.size(); ++i) {
    for (std::size_t k = i; k > 0 && strides[order[k - 1]] < strides[order[k]]; --k) std::swap(order[k - 1], order[k]);
  }
  return order;
}

/// Whether memory with these strides has no gaps. Those of dimensions of one index do not matter.
bool is_dense(const Lengths& sizes, at::IntArrayRef strides, const Order& order) {
  std::int64_t expected = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t dim = order[i];
    if (sizes[dim] == 1) continue;
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

bool lies_in(const Order& order, const at::Tensor& tensor) {
  std::int64_t outer = INT64_MAX;
  for (const std::size_t dim : order) {
    if (tensor.size(static_cast<std::int64_t>(dim)) <= 1) continue;
    const std::int64_t stride = tensor.stride(static_cast<std::int64_t>(dim));
    if (stride > outer) return false;
    outer = stride;
  }
  return true;
}

at::Tensor in_order(const at::Tensor& tensor, const Order& order) {
  if (lies_in(order, tensor)) return tensor;
  const std::vector<std::int64_t> there(order.begin(), order.end());
  std::vector<std::int64_t> back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<std::int64_t>(i);
  return tensor.permute(there).contiguous().permute(back);
}

}  // namespace

at::Tensor in_order_of(at::IntArrayRef like, const at::Tensor& tensor) { return in_order(tensor, order_of(like)); }

at::Tensor wrap_dense(at::Tensor local, const CutDataPtr& cut, at::IntArrayRef like) {
  Lengths sizes(local.sizes().begin(), local.sizes().end());
  sizes[static_cast<std::size_t>(cut->dim())] = cut->size();
  if (like.size() != sizes.size()) return wrap(std::move(local), cut);
  const Order order = order_of(like);
  Lengths strides(like.begin(), like.end());
  if (!is_dense(sizes, like, order)) {
    std::int64_t stride = 1;
    for (std::size_t i = order.size(); i-- > 0;) {
      strides[order[i]] = stride;
      stride *= std::max<std::int64_t>(1, sizes[order[i]]);
    }
  }
  // The part of a dimension may have one index, and a gathered argument another order: a kernel that then chose
  // another order than for the whole would leave a part of which no view is possible where the whole has one.
  return wrap(in_order(local, order), cut, strides);
}

at::Tensor wrap_result(at::Tensor local, const CutDataPtr& cut) { return cut ? wrap(std::move(local), cut) : local; }

at::Tensor make_held(at::Tensor local, const CutDataPtr& cut, const at::Tensor& like) {
  return intercept::make_part(std::move(local), cut, like.sizes(), like.strides());
}

const Site* current_site(const CutData& cut) {
  return cut.axis().site(current_call ? std::string_view(current_call->name()) : "backward", cut.parameter());
}

CurrentCall::CurrentCall(const OperatorCall& call) : before_(std::exchange(current_call, &call)) {}
CurrentCall::~CurrentCall() { current_call = before_; }

}  // namespace tessera::tp
